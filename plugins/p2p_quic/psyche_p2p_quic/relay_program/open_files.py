"""Connections within the number of files that the system lets a process open.

Without room for files a relay could accept nobody, and a coordinator beside it could neither hear its members nor save its state.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from psyche_p2p_quic.relay.limits import RelayLimits

_LEAST = 16

logger: logging.Logger = logging.getLogger("psyche.relay")


def within_open_files(limits: RelayLimits, *, others: int) -> RelayLimits:
    """Raise the process's own limit of open files, and return limits whose connections fit into it.

    others: files that the rest of the process may need. Where the system allows fewer than wanted, a warning says so, and the
    relay takes as many connections as are left, a half of all files at least.
    """
    try:
        import resource
    except ImportError:
        return limits  # Windows has no such limit

    count = limits.connections + others
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted >= count:
        return limits

    connections = max(wanted - others, wanted // 2, _LEAST)
    logger.warning(
        "this system allows %d open files and the relay wants %d, so it takes %d connections; see `ulimit -Hn`",
        wanted,
        count,
        connections,
    )
    return replace(limits, connections=connections, clients=min(limits.clients, max(1, connections // 2)))
