"""Notices that this machine has moved to another network, which an old connection does not report."""

from __future__ import annotations

import errno
import socket

import anyio

LOOK_SECONDS = 2.0


async def until_moved(ip: str) -> None:
    """Wait until this machine no longer has an IP address; forever if the address is unknown or has a zone."""
    while is_ours(ip):  # noqa: ASYNC110 - the system sends no notice, so it must be polled
        await anyio.sleep(LOOK_SECONDS)


def is_ours(ip: str) -> bool:
    """Return whether this machine has an address. Nothing is sent."""
    if not ip or "%" in ip:
        return True

    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True
