"""Events of a client or coordinator as a stream that many can read, each from the beginning, at their own speed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

import anyio

Event = TypeVar("Event")

KEPT = 4096
"""Maximum number of events kept for a reader; a slower reader misses the oldest ones."""


class EventLog(Generic[Event]):
    """Events in order, for many readers. It belongs to one event loop; `put` never waits."""

    def __init__(self) -> None:
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._count = 0
        self._closed = False
        self._news = anyio.Event()

    def put(self, event: Event) -> None:
        """Add an event."""
        self._kept.append(event)
        self._count += 1
        self._wake()

    def close(self) -> None:
        """End the log: readers end after the last event."""
        self._closed = True
        self._wake()

    async def read(self) -> AsyncIterator[Event]:
        """Every event, starting with the kept ones; ends when the log is closed."""
        async for _, event in self.numbered():
            if event is not None:
                yield event

    async def numbered(self, *, after: int = 0, beat: float = math.inf) -> AsyncIterator[tuple[int, Event | None]]:
        """The same events with their numbers from 1, without those up to number `after`.

        Yields None in place of an event after each `beat` seconds without one.
        """
        at = max(min(after, self._count), self._count - len(self._kept))
        while True:
            while at < self._count:
                at = max(at, self._count - len(self._kept))
                event = self._kept[at - self._count]
                at += 1
                yield at, event
            if self._closed:
                return
            news = self._news
            with anyio.move_on_after(beat):
                await news.wait()
            if not news.is_set():
                yield at, None

    def _wake(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()
