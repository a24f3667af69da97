"""Limits how many tasks run at once, such that none can block the others for long.

When a task has held its place for too long it continues, but another one starts beside it. So downloads share the connection in
order, and one with a silent source delays nobody. Nothing is cancelled.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio


class Limiter:
    """count: most at once. seconds: after which a turn no longer counts."""

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
        """Seconds until a turn is free even if no task ends, 0 if one is free."""
        now = anyio.current_time()
        ends = sorted(begun + self._seconds for begun in self._begun.values() if now < begun + self._seconds)
        return 0.0 if len(ends) < self._count else ends[len(ends) - self._count] - now
