"""Virtual time: a heap of scheduled calls, and how long the steps of a run take in it, to see what a liar costs the others.

Calls with equal times run in the order of scheduling, so runs are reproducible.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import RunState


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


FIRST_STEPS = 10
"""Steps that are not measured: a liar may cost time until the others stop waiting for it."""


class StepTimes:
    """When each step of a run was first finished. finished_at: virtual seconds of the run's end, 0 before."""

    def __init__(self) -> None:
        self.finished_at: float = 0.0
        self._done: dict[int, float] = {}

    def record(self, state: CoordinatorState, now: float) -> None:
        """The state has changed. now: virtual seconds."""
        self._done.setdefault(state.progress.step, now)
        if state.run_state is RunState.Finished and not self.finished_at:
            self.finished_at = now

    @property
    def median(self) -> float:
        """Virtual seconds of the median step after the first ten, of all steps if there are no more; 0 before the first."""
        times = [self._done[step] for step in sorted(self._done)]
        took = [later - earlier for earlier, later in pairwise(times)]
        return median(took[FIRST_STEPS:] or took) if took else 0.0
