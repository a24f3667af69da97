"""Limits connections to the number of files that the system lets a process open.

Without free files a relay could accept nobody, and a coordinator in the same process could neither serve members nor save its
state.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from psyche_core.open_files import allow_open_files
from psyche_p2p_quic.relay.limits import RelayLimits

_LEAST = 16

logger: logging.Logger = logging.getLogger("psyche.relay")


def within_open_files(limits: RelayLimits, *, others: int) -> RelayLimits:
    """Raise the process's own limit of open files, and return limits whose connections fit into it.

    others: files that the rest of the process may need. If the system allows fewer than wanted, a warning says so, and the relay
    gets the rest for its connections, at least half of all files.
    """
    count = limits.connections + others
    wanted = allow_open_files(count)
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
