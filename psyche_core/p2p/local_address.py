"""Finds the local address that leads to a server: other clients of that server most likely reach us at it."""

from __future__ import annotations

import socket


def interface_towards(address: str) -> str:
    """Return the local address from which `host:port#KEY` is reached; loopback if unknown. Sends nothing but a DNS query."""
    host, _, port = address.partition("#")[0].rpartition(":")
    try:
        family, kind, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return "127.0.0.1"
