"""Bounds what the kernel keeps for a relay's connections, which no queue of the relay counts.

Without a bound the kernel lets a send buffer grow to megabytes for a client that reads slowly (4 MB by `net.ipv4.tcp_wmem`). And
it keeps what was written to a socket after the program has closed it, for minutes if the client takes nothing.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Protocol

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: on, for no time. Closing then frees what is not sent yet, and the client gets a reset."""


class Socket(Protocol):
    """What is used of a socket. asyncio gives one that can do little more."""

    def setsockopt(self, level: int, option: int, value: int | bytes, /) -> None:
        """As of a socket."""


def bound(connection: Socket, *, send_bytes: int, unanswered_seconds: float) -> None:
    """Let the kernel keep about twice `send_bytes` for a connection, and end it if the client acknowledges nothing for this long.

    The kernel doubles the number, because it counts its own structures as well. The second also holds after the socket was
    closed with bytes to send. A system that has no such option, or refuses it, keeps its defaults.
    """
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    option: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, option, int(1000 * unanswered_seconds))


def discard(connection: Socket) -> None:
    """Make the kernel forget what waits to be sent when this socket is closed."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
