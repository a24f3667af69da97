"""Measures how long the steps of a run take in virtual time, to see what a liar costs the others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import RunState

FIRST_STEPS = 10
"""Steps that are not measured: a liar may cost time until the others stop waiting for it."""


@dataclass(slots=True)
class Durations:
    """How often something was done, and how long it took in total, in virtual seconds."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one more time."""
        self.count += 1
        self.seconds += seconds

    @property
    def mean(self) -> float:
        """Average seconds, 0 before the first time."""
        return self.seconds / self.count if self.count else 0.0


class StepTimes:
    """When each step of a run was first finished. finished_at: virtual seconds of the run's end, 0 before."""

    def __init__(self) -> None:
        self.finished_at: float = 0.0
        self._done: dict[int, float] = {}

    def look(self, state: CoordinatorState, now: float) -> None:
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
