"""Virtual time: a heap of calls. Equal times are served in the order asked for, so a run never depends on the machine."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """now: virtual seconds since the start of the run. served: calls made so far."""

    def __init__(self) -> None:
        self.now = 0.0
        self.served = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._asked = 0

    def after(self, delay: float, call: Callable[..., None], *arguments: Any) -> None:
        """Make a call `delay` virtual seconds from now."""
        self._asked += 1
        heapq.heappush(self._heap, (self.now + delay, self._asked, call, arguments))

    def step(self) -> None:
        """Go to the next call and make it. Raises IndexError when nothing is left to happen."""
        self.now, _, call, arguments = heapq.heappop(self._heap)
        self.served += 1
        call(*arguments)
