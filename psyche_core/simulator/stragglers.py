"""Which honest members train so slowly that the others may leave them behind (F16), computed from their true training times.

The machines decide by what they see of each other (`client.machine.rounds.waiting`); this is what they should see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

MEAN_RATIO = 1.15
"""A member may be left behind if its training takes this many times as long as every other member's. It gets 15 % of the
epoch's time (F16), from which the time that its results and words are under way is taken, too."""

LATENESS = 0.15
"""Or if it was done later than every other member by more than this fraction of an epoch's time and LATENESS_SECONDS, added up
over the rounds in which it was late. Earlier rounds do not make up for later ones, so where times vary a smaller ratio does."""

LATENESS_SECONDS = 1.0
"""F16 allows two seconds; messages and other work need the rest."""

NEWEST = 20
"""So many of the last times are remembered one by one."""


@dataclass(slots=True)
class TrainingTimes:
    """How often a member trained, and how long it took in total, in virtual seconds.

    newest: of the last times, each. done_at: virtual time when a share was trained, by epoch and height.
    """

    count: int = 0
    seconds: float = 0.0
    newest: list[float] = field(default_factory=list)
    done_at: dict[tuple[int, int], float] = field(default_factory=dict)

    def add(self, seconds: float, *, place: tuple[int, int], done_at: float) -> None:
        """Count one more time. place: epoch and height."""
        self.count += 1
        self.seconds += seconds
        self.newest = [*self.newest[1 - NEWEST :], seconds]
        self.done_at[place] = done_at

    @property
    def mean(self) -> float:
        """Average seconds, 0 before the first time."""
        return self.seconds / self.count if self.count else 0.0

    @property
    def newest_mean(self) -> float:
        """Average of the last times, 0 before the first."""
        return sum(self.newest) / len(self.newest) if self.newest else 0.0


class Trains(Protocol):
    """A member. training: its times."""

    training: TrainingTimes


def is_straggler(member: Trains, others: Sequence[Trains]) -> bool:
    """Whether a member trained so much longer than every other that it is no longer waited for.

    On average of the whole run, or lately: a member whose shares take longer than usual for a while is late in that while. Or by
    its lateness in its newest epoch. For the averages, members that trained less than half as often, such as liars that were
    dropped early, are not compared.
    """
    ours = member.training
    compared = [other.training for other in others if other.training.count and 2 * other.training.count >= ours.count]
    if not ours.count or not compared:
        return False

    always = ours.mean > MEAN_RATIO * max(their.mean for their in compared)
    lately = ours.newest_mean > MEAN_RATIO * max(their.newest_mean for their in compared)
    return always or lately or _is_late(ours, [other.training for other in others])


def _is_late(ours: TrainingTimes, others: Sequence[TrainingTimes]) -> bool:
    """Whether the lateness in our newest epoch is above LATENESS."""
    newest = max(epoch for epoch, _ in ours.done_at)
    late, began, ended = 0.0, math.inf, 0.0
    for place, done in ours.done_at.items():
        theirs = [other.done_at[place] for other in others if place in other.done_at]
        if place[0] == newest and theirs:
            late += max(0.0, done - max(theirs))
            began, ended = min(began, done, *theirs), max(ended, done)
    return late > 0 and late > LATENESS * (ended - began) + LATENESS_SECONDS
