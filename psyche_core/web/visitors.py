"""Connections of visitors: limits their number and their time. Accepts them for a web server.

A page must not use up the open files that its program needs, for instance for a coordinator's state. So connections are counted,
in total and for each address. When there are too many, the oldest connection without a request in progress is closed. If all of
them are being answered, the new connection is closed before a byte is read.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import anyio
import anyio.lowlevel

from psyche_core.open_files import allow_open_files
from psyche_core.rate_limit import address_block
from psyche_core.telemetry.repeated_problem import RepeatedProblem

_OTHER_FILES = 1024
"""Number of files that the rest of the program may need."""

_LEAST_CONNECTIONS = 16
_PAUSE_SECONDS = 1.0
"""Seconds until accepting is tried again after the system refused it."""

logger: logging.Logger = logging.getLogger("psyche.web")


@dataclass(frozen=True, slots=True)
class VisitorLimits:
    """Limits for visitors. connections: most at once. per_address: most of one IPv4 address or IPv6 /64.

    seconds: time until a request's head must be complete, counted from the connection's start or from the previous answer; also
    the longest time in which a visitor reads nothing of an answer.
    """

    connections: int = 200
    per_address: int = 20
    seconds: float = 10.0

    def within_open_files(self) -> VisitorLimits:
        """Raise the process's limit of open files so that these connections fit. If it cannot be raised, reduce the limits."""
        allowed = allow_open_files(self.connections + _OTHER_FILES)
        return replace(self, connections=min(self.connections, max(_LEAST_CONNECTIONS, allowed // 4)))


class Places:
    """Counts visits. If there are too many, it closes the oldest idle one: browsers keep idle connections open."""

    def __init__(self, limits: VisitorLimits) -> None:
        self._limits = limits
        self._taken: Counter[str] = Counter()
        self._asking_nothing: dict[Visit, None] = {}

    def enter(self, host: str) -> Visit | None:
        """Register a connection from this host. Return None if there is no place for it."""
        place = address_block(host)
        crowded = self._taken[place] >= self._limits.per_address
        if crowded or self._taken.total() >= self._limits.connections:
            leaving = (visit for visit in self._asking_nothing if visit.idle and (visit.place == place or not crowded))
            oldest = next(leaving, None)
            if oldest is None:
                return None
            oldest.end()

        self._taken[place] += 1
        return Visit(self, place, self._limits.seconds)

    def note(self, visit: Visit, *, asks_nothing: bool) -> None:
        """Note whether no answer is in progress."""
        if asks_nothing:
            self._asking_nothing.setdefault(visit)
        else:
            self._asking_nothing.pop(visit, None)

    def leave(self, visit: Visit) -> None:
        """Note that a visit has ended."""
        self._asking_nothing.pop(visit, None)
        self._taken[visit.place] -= 1
        if self._taken[visit.place] <= 0:
            del self._taken[visit.place]


class Visit:
    """One connection. It is closed if the visitor takes longer than `seconds` to send a request's head or to read of an answer.

    place: the address block by which it is counted.
    """

    def __init__(self, places: Places, place: str, seconds: float) -> None:
        self.place = place
        self._places: Places | None = places
        self._seconds = seconds
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0

    @property
    def idle(self) -> bool:
        """Whether no part of an answer waits to be sent."""
        return self._transport is not None and self._transport.get_write_buffer_size() == 0

    def began(self, transport: asyncio.Transport) -> None:
        """Note that the connection is established."""
        self._transport = transport

    def look(self, *, asks_nothing: bool, takes_nothing: bool) -> None:
        """Note whether no answer is in progress, and whether our answer is not being read. Either starts the time limit."""
        if self._places is None or self._transport is None:
            return

        self._places.note(self, asks_nothing=asks_nothing)
        if not (asks_nothing or takes_nothing):
            self._stop()
        elif self._timer is None:
            self._wait(self._transport)

    def end(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self.left()

    def left(self) -> None:
        """Note that the connection has ended. Idempotent."""
        self._stop()
        if self._places is not None:
            self._places.leave(self)
            self._places = None

    def _wait(self, transport: asyncio.Transport) -> None:
        self._unread = transport.get_write_buffer_size()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._over, transport)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self, transport: asyncio.Transport) -> None:
        self._timer = None
        if 0 < transport.get_write_buffer_size() < self._unread:
            self._wait(transport)  # the connection is slow, but the visitor reads
        else:
            self.end()


Speaker = Callable[[Visit], asyncio.Protocol]
"""Makes the protocol object for one visitor. It reports the connection's start, end and progress to the visit."""


async def welcome(listening: socket.socket, limits: VisitorLimits, speaker: Speaker) -> None:
    """Accept connections until cancelled, within the limits."""
    loop = asyncio.get_running_loop()
    places = Places(limits)
    failing = RepeatedProblem()
    listening.setblocking(False)
    while True:
        await anyio.lowlevel.checkpoint()  # so that a flood of connections does not block other tasks
        try:
            connection, (host, *_) = await loop.sock_accept(listening)
        except ConnectionError:
            continue  # closed before it was accepted
        except OSError as error:
            if failing.failed():
                logger.warning("the page cannot accept visitors now: %s; trying again every second", error.strerror)
            await anyio.sleep(_PAUSE_SECONDS)
            continue

        visit = places.enter(host)
        if visit is None:
            connection.close()
            continue

        try:
            await loop.connect_accepted_socket(functools.partial(speaker, visit), connection)
        except BaseException as error:
            connection.close()
            visit.left()
            if not isinstance(error, OSError):
                raise
