"""For whom a member waits, and how long: waiting is earned (protocol F16).

A round lasts until its slowest trainer is done. A trainer that is slow on purpose, or holds its result back, would set
everybody's speed. So each slot has a budget of seconds per epoch by which it may delay the others with its results, and one for
Finished. Behind all trainers but one it may be TWICE a round's usual time late, and then SINGLE of the epoch's time so far; with
both together no more than the same and TOGETHER. That is what one liar can cost. Where several are slow together, each is
compared with two thirds of the trainers, with SEVERAL, because members may differ in speed. A slot without budget is not waited
for: its result counts if it comes before the next round's witnesses speak. Budgets grow with time, so a short problem is
forgiven.

A member may look late without being slow: because it was busy when the others stopped to wait for a liar, and so waits for longer
than they do. So it stops waiting once all others that are waited for have said Finished and ALONE is over, where a
quorum does without its word: SPARE of the elected, and all results of the last settled round.

A round's usual time is the shortest in this epoch that most trainers needed. The present round's time would give more to whoever
delays it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from psyche_core.coordinator.round.witness import quorum

TWICE = 2.0
"""Times a round's usual time by which any slot may be late in an epoch."""

LEAST = 2.0
"""Lower bound for that, in seconds: rounds may be shorter than a busy machine's response time."""

SINGLE = 0.15
"""Fraction of the epoch's time by which one slot may be later than all others, with results or with Finished."""

TOGETHER = 0.18
"""The same for both added up."""

SEVERAL = 1.0
"""Fraction of the epoch's time by which a slot may be later than two thirds of the trainers, with results or with Finished."""

ALONE = 0.1
"""Fraction of a round's usual time for which a member waits on for results while nobody else does: less than SINGLE, so that
nobody looks late because another member withholds a result from it alone."""

ALONE_LEAST = 0.25
"""Lower bound for that, in seconds."""

NEARLY = 0.5
"""Fraction of its budget that a slot must have used before we may continue without its result: others, who began to wait
slightly earlier, no longer wait for it. A slow connection of our own makes all results equally late, and uses nobody's
budget."""

SPARE = 2
"""Statements that a quorum must be able to do without for this: one liar's and ours."""

MOST_LEFT_BEHIND = 1
"""Others that may lack Finished and no longer be waited for: one liar. Two that wait for the same result go on waiting, because
a quorum may not do without both and a liar."""

BEHIND_ALL, BEHIND_MOST = 0, 1
"""Measures: lateness compared with all trainers but one, and with two thirds of them."""

Kind = Literal["results", "finished"]


def fewest(expected: int) -> int:
    """How many of so many trainers must be done before any counts as late; until then all are waited for."""
    return min(max(expected - 1, 1), quorum(expected))


@dataclass(frozen=True, slots=True)
class Awaited:
    """What is awaited from trainers in a round. times: when they were done, by slot; expected: all slots that must be done."""

    kind: Kind
    times: Mapping[int, float]
    expected: Sequence[int]

    def moments(self) -> list[tuple[int, float]]:
        """When all but one were done, and when two thirds were, as far as that has happened: by measure."""
        count = len(self.expected)
        if len(self.times) < fewest(count):
            return []

        times = self.times
        done = sorted([times[slot] for slot in self.expected if slot in times])
        needed = ((BEHIND_ALL, max(count - 1, 1)), (BEHIND_MOST, quorum(count)))
        return [(measure, done[many - 1]) for measure, many in needed if 1 <= many <= len(done)]


@dataclass(slots=True)
class WaitingBudget:
    """Budget used in one epoch: seconds by kind, measure and slot. began: when its first round opened, None before.

    usual: by measure, the shortest time in which a round's Finished arrived.
    """

    began: float | None = None
    _usual: dict[int, float] = field(default_factory=dict)
    _spent: dict[tuple[Kind, int, int], float] = field(default_factory=dict)

    def waited_for(self, slots: Iterable[int], what: Awaited, *, opened: float, now: float) -> frozenset[int]:
        """Those of the given slots that are not done and still waited for. opened: when the round began."""
        waited = frozenset(slots)
        moments = what.moments() if waited else ()
        elapsed = 0.0 if self.began is None else now - self.began
        for measure, moment in moments:
            left = max(TWICE * self._usual.get(measure, moment - opened), LEAST) - (now - moment)
            share = SINGLE if measure == BEHIND_ALL else SEVERAL
            waited = frozenset([slot for slot in waited if self._of(what.kind, measure, slot) <= left + share * elapsed])
            if measure == BEHIND_ALL:
                waited = frozenset([slot for slot in waited if self._in_all(slot) <= left + TOGETHER * elapsed])
        return waited

    def nearly_used_up(self, slot: int, what: Awaited, *, opened: float, now: float) -> bool:
        """Whether an unfinished slot has used most of the time by which it may be later than all others but one."""
        elapsed = 0.0 if self.began is None else now - self.began
        for measure, moment in what.moments():
            if measure == BEHIND_ALL:
                at_once, late = max(TWICE * self._usual.get(measure, moment - opened), LEAST), now - moment
                alone = (self._of(what.kind, measure, slot) + late) / (at_once + SINGLE * elapsed)
                together = (self._in_all(slot) + late) / (at_once + TOGETHER * elapsed)
                return max(alone, together) >= NEARLY

        return False

    def waits_alone(
        self, lacking: Iterable[int], results: Awaited, finished: Awaited, *, own: int, witnesses: int, opened: float, now: float
    ) -> bool:
        """Whether a member that lacks results should stop waiting, because nobody else who is waited for still waits.

        lacking: slots whose results it lacks, of those in `results`. finished: members that sent Finished. own: its slot.
        witnesses: how many will attest to the results. opened: when the round began.
        """
        if witnesses - quorum(witnesses) < SPARE:
            return False
        if not all(self.nearly_used_up(slot, results, opened=opened, now=now) for slot in lacking):
            return False

        others = [slot for slot in finished.expected if slot != own]
        waiting = [slot for slot in others if slot not in finished.times]
        done = [finished.times[slot] for slot in others if slot in finished.times]
        if not done or len(waiting) > MOST_LEFT_BEHIND:
            return False

        without_us = Awaited("finished", finished.times, others)
        if self.waited_for(waiting, without_us, opened=opened, now=now):
            return False

        usual = self._usual.get(BEHIND_ALL, max(done) - opened)
        return now >= max(done) + max(ALONE * usual, ALONE_LEAST)

    def charge(self, what: Awaited, *, opened: float, now: float) -> None:
        """A round is over: record how late each slot was, or is by now."""
        for measure, moment in what.moments():
            for slot in what.expected:
                late = min(what.times.get(slot, now), now) - moment
                if late > 0:
                    self._spent[what.kind, measure, slot] = self._of(what.kind, measure, slot) + late
            if what.kind == "finished":
                self._usual[measure] = min(self._usual.get(measure, moment - opened), moment - opened)

    def _of(self, kind: Kind, measure: int, slot: int) -> float:
        return self._spent.get((kind, measure, slot), 0.0)

    def _in_all(self, slot: int) -> float:
        """What a slot has used of both kinds, compared with all trainers but one."""
        return self._of("results", BEHIND_ALL, slot) + self._of("finished", BEHIND_ALL, slot)
