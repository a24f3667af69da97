"""The metrics port of each of a testnet's programs. Fixed before they start, so that a restarted client has the same one."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence

from psyche_core.errors import UserError
from psyche_core.testnet.arguments import HOST

LARGEST_PORT = 65535


def metrics_ports(first: int | None, names: Sequence[str]) -> Mapping[str, int]:
    """Each program's port: consecutive ones from `first` on, or free ones if it is 0; none if it is None.

    A port may be taken by another process before its program binds it; the program says so. Raises UserError if one is in use.
    """
    if first is None:
        return {}

    wanted = [0] * len(names) if first == 0 else list(range(first, first + len(names)))
    if wanted[-1] > LARGEST_PORT:
        message = (
            f"--metrics-local-port {first}: {len(names)} programs need the ports up to {wanted[-1]}, and {LARGEST_PORT} is the "
            "largest one; choose a smaller one, or 0 for free ones"
        )
        raise UserError(message)

    with contextlib.ExitStack() as held:  # together, so that no port is found free twice
        return {name: _bound(port, held) for name, port in zip(names, wanted, strict=True)}


def metrics_sentence(ports: Mapping[str, int]) -> str:
    """Where the figures are, for people."""
    places = ", ".join(f"{name} http://{HOST}:{port}/metrics" for name, port in ports.items())
    return f"figures for Prometheus: {places}"


def _bound(port: int, held: contextlib.ExitStack) -> int:
    probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((HOST, port))
    except OSError as error:
        message = (
            f"cannot use port {port} on {HOST}: {error.strerror}; choose another with --metrics-local-port, or 0 for free ones"
        )
        raise UserError(message) from error

    return int(probe.getsockname()[1])
