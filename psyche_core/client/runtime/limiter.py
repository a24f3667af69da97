"""Limit how many tasks run at once, such that none can block the others for long.

A task that has had its place for too long goes on, and another one starts beside it. So downloads share the line in order, and
those with a silent source delay nobody. Nothing is cancelled.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio


class Limiter:
    """count: how many at once. seconds: how long a turn counts."""

    def __init__(self, count: int, *, seconds: float) -> None:
        self._count = count
        self._seconds = seconds
        self._begun: dict[object, float] = {}
        self._ended = anyio.Event()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn; it ends with the block."""
        while (pause := self._pause()) > 0:
            with anyio.move_on_after(pause):
                await self._ended.wait()

        ticket = object()
        self._begun[ticket] = anyio.current_time()
        try:
            yield
        finally:
            del self._begun[ticket]
            self._ended.set()
            self._ended = anyio.Event()

    def _pause(self) -> float:
        """Seconds until a turn is free even if nobody ends, 0 when there is one."""
        now = anyio.current_time()
        ends = sorted(begun + self._seconds for begun in self._begun.values() if now < begun + self._seconds)
        return 0.0 if len(ends) < self._count else ends[len(ends) - self._count] - now
