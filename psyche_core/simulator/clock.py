"""Virtual time: a heap of scheduled calls. Calls with equal times run in the order of scheduling, so runs are reproducible."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """now: virtual seconds since the start of the run. served: number of calls made so far."""

    def __init__(self) -> None:
        self.now: float = 0.0
        self.served: int = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._asked = 0

    def after(self, delay: float, call: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call `delay` virtual seconds from now."""
        self._asked += 1
        heapq.heappush(self._heap, (self.now + delay, self._asked, call, arguments))

    def step(self) -> None:
        """Advance to the next call and make it. Raises IndexError when none is left."""
        self.now, _, call, arguments = heapq.heappop(self._heap)
        self.served += 1
        call(*arguments)
