"""Which local address leads to a server: the one that its other clients most likely reach us at."""

from __future__ import annotations

import socket


def interface_towards(address: str) -> str:
    """The local address from which `host:port#KEY` is reached; loopback if that is unknown. At most looks the host's name up."""
    host, _, port = address.partition("#")[0].rpartition(":")
    try:
        family, kind, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return "127.0.0.1"
