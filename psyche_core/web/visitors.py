"""Connections of visitors: how many there may be, and how long one may take. Accepts them for a web server.

A page must never take the files that the program beside it needs, for a coordinator's state for instance. So connections are
counted, in all and for each address, and those beyond are closed at once, before a byte is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import anyio
import anyio.lowlevel

from psyche_core.open_files import allow_open_files
from psyche_core.telemetry.repeated_problem import RepeatedProblem

_OTHER_FILES = 1024
"""Files that the rest of the program may need."""

_LEAST_CONNECTIONS = 16
_PAUSE_SECONDS = 1.0
"""Time until accepting is tried again after the system refused it."""

logger: logging.Logger = logging.getLogger("psyche.web")


@dataclass(frozen=True, slots=True)
class VisitorLimits:
    """connections: most at once. per_address: most of one IPv4 address or IPv6 /64.

    seconds: until a request's head must be complete, counted from the connection or from the answer before, and the longest
    time in which a visitor takes nothing of an answer.
    """

    connections: int = 200
    per_address: int = 20
    seconds: float = 10.0

    def within_open_files(self) -> VisitorLimits:
        """Raise the process's limit of open files so that these connections fit; where it cannot be raised, take fewer."""
        allowed = allow_open_files(self.connections + _OTHER_FILES)
        return replace(self, connections=min(self.connections, max(_LEAST_CONNECTIONS, allowed // 4)))


class Places:
    """Counts connections. Pure."""

    def __init__(self, limits: VisitorLimits) -> None:
        self._limits = limits
        self._taken: Counter[str] = Counter()

    def enter(self, host: str) -> bool:
        """Take a place for a connection from this host; whether there was one."""
        place = _place_of(host)
        if self._taken.total() >= self._limits.connections or self._taken[place] >= self._limits.per_address:
            return False

        self._taken[place] += 1
        return True

    def leave(self, host: str) -> None:
        """Give a place back that was taken for this host."""
        place = _place_of(host)
        self._taken[place] -= 1
        if self._taken[place] <= 0:
            del self._taken[place]


Speaker = Callable[[Callable[[], None]], asyncio.Protocol]
"""Makes what speaks with one visitor. It calls what it is given when the connection has ended."""


async def welcome(listening: socket.socket, limits: VisitorLimits, speaker: Speaker) -> None:
    """Accept connections until cancelled, within the limits."""
    loop = asyncio.get_running_loop()
    places = Places(limits)
    failing = RepeatedProblem()
    listening.setblocking(False)
    while True:
        await anyio.lowlevel.checkpoint()  # a flood of connections takes turns with everything else
        try:
            connection, (host, *_) = await loop.sock_accept(listening)
        except ConnectionError:
            continue  # gone before it was accepted
        except OSError as error:
            if failing.failed():
                logger.warning("the page cannot accept visitors now: %s; trying again every second", error.strerror)
            await anyio.sleep(_PAUSE_SECONDS)
            continue

        if not places.enter(host):
            connection.close()
            continue

        left = contextlib.ExitStack()
        left.callback(places.leave, host)
        try:
            await loop.connect_accepted_socket(functools.partial(speaker, left.close), connection)
        except BaseException as error:
            connection.close()
            left.close()
            if not isinstance(error, OSError):
                raise


class Patience:
    """Ends a connection that keeps us waiting for longer than `seconds`: for a request's head, or for reading an answer."""

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        self._transport = transport
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0

    def look(self, *, waiting: bool) -> None:
        """Note whether we wait for the visitor now. The time runs from when it began."""
        if not waiting:
            self.end()
        elif self._timer is None:
            self._unread = self._transport.get_write_buffer_size()
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._over)

    def end(self) -> None:
        """The connection is over, or nobody waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._timer = None
        if 0 < self._transport.get_write_buffer_size() < self._unread:
            self.look(waiting=True)  # a slow line, but it reads
        else:
            self._transport.abort()


def _place_of(host: str) -> str:
    """What counts as one address: the IPv4 address, or the /64 network of an IPv6 address."""
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host

    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is None:
            return str(ipaddress.ip_network((ip, 64), strict=False))
        ip = ip.ipv4_mapped
    return str(ip)
