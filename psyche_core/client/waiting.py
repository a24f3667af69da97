"""Whom a member waits for: waiting is earned (protocol F16).

A round lasts until its slowest trainer is done, so one that is slow on purpose, or keeps its result back, would set everybody's
pace. Each slot has a budget of seconds in an epoch by which it may hold the others up. Behind all trainers but one it may be
TWICE the round's usual time and then SINGLE of the epoch's time so far: that is what one liar can cost. Where several are slow
together, each is held against two thirds of the trainers, with SEVERAL in place of SINGLE: members may differ in speed. Who has
no budget left is not waited for: its result counts if it comes before the next round's witnesses speak. Budgets grow with time,
so a bad moment is forgiven.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from psyche_core.coordinator.witness import quorum

TWICE = 2.0
"""Times of a round that any slot may be late by in an epoch."""

LEAST = 1.0
"""Seconds that this is at least: rounds may be shorter than what a busy machine takes to look up."""

SINGLE = 0.15
"""Share of the epoch's time by which one slot may be later than all others but itself."""

SEVERAL = 1.0
"""Share of the epoch's time by which a slot may be later than two thirds of the trainers."""


@dataclass(slots=True)
class WaitingBudget:
    """What is spent in one epoch: seconds by slot, for each measure. began: when its first round opened, None before."""

    began: float | None = None
    _spent: dict[tuple[int, int], float] = field(default_factory=dict)

    def waited_for(
        self, slots: Iterable[int], times: Mapping[int, float], expected: Sequence[int], *, opened: float, now: float
    ) -> frozenset[int]:
        """Those of some slots that are not done and still waited for.

        times: when others were done, by slot; expected: all slots that are to be done; opened: when they could begin.
        """
        left = [
            (measure, self._allowed(measure, moment - opened, now=now) - (now - moment))
            for measure, moment in self._moments(times, expected)
        ]
        waited = frozenset(slots)
        for measure, seconds in left:
            waited = frozenset([slot for slot in waited if self._spent.get((measure, slot), 0.0) <= seconds])
        return waited

    def charge(self, times: Mapping[int, float], expected: Sequence[int], *, now: float) -> None:
        """Note how late each slot was, or is by now."""
        for measure, moment in self._moments(times, expected):
            for slot in expected:
                late = min(times.get(slot, now), now) - moment
                if late > 0:
                    self._spent[measure, slot] = self._spent.get((measure, slot), 0.0) + late

    def _moments(self, times: Mapping[int, float], expected: Sequence[int]) -> list[tuple[int, float]]:
        """When all but one, and when two thirds, were done, where they are."""
        most = max(len(expected) - 1, 1), quorum(len(expected))
        if len(times) < min(most):
            return []

        done = sorted([times[slot] for slot in expected if slot in times])
        return [(measure, done[count - 1]) for measure, count in enumerate(most) if 1 <= count <= len(done)]

    def _allowed(self, measure: int, usual: float, *, now: float) -> float:
        elapsed = 0.0 if self.began is None else now - self.began
        return max(TWICE * usual, LEAST) + (SINGLE, SEVERAL)[measure] * elapsed
