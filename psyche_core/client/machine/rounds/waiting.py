"""For which trainers a member waits in a round, and how long (protocol F16).

A round lasts until its slowest trainer is done. A trainer that is slow on purpose, or holds its result back, would set
everybody's speed. So each member keeps a budget for each slot: the seconds per epoch by which the slot may delay the others. A
slot whose budget is used up is not waited for; its result counts only if it comes before the next round's witnesses send their
statements. Budgets grow with the epoch's time, so a short problem is forgiven.

Results and Finished have a budget each. A slot's lateness is measured in two ways, and it must stay within the budgets of both:

- against all trainers but one: GRACE_ROUNDS times a round's usual time, and BEHIND_ALL_FRACTION of the epoch's time so far. The
  lateness of results and of Finished together must stay within the same grace and COMBINED_FRACTION of the epoch's time. That is
  the most that one liar can cost;
- against two thirds of the trainers, for the case that several are slow together: the same grace, and BEHIND_MOST_FRACTION of the
  epoch's time. It is larger because members may differ in speed.

A round's usual time is the shortest in this epoch that most trainers needed. The present round's time would give more to whoever
delays it. The grace is at least MIN_GRACE_SECONDS.

An honest member can look late to the others: if it was busy when they stopped waiting for a liar, it goes on waiting for longer
than they do. So a member stops waiting for the results that it lacks if all of these hold (`should_stop_waiting`, and
`EpochNotes.should_stop_waiting` for the last one):

- each slot whose result it lacks has used NEARLY_SPENT_FRACTION of a budget against all trainers but one;
- all other members that are waited for have sent Finished, and at most MAX_STRAGGLERS of the rest have not;
- since the last of these Finished, LAST_WAITER_FRACTION of a round's usual time has passed, at least LAST_WAITER_MIN_SECONDS;
- SPARE_STATEMENTS fewer statements than there are elected witnesses are still a quorum;
- all results that were accepted in the last settled round would have been accepted without its own statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from psyche_core.coordinator.round.witness import quorum

GRACE_ROUNDS = 2.0
"""Times a round's usual time by which any slot may be late in an epoch."""

MIN_GRACE_SECONDS = 2.0
"""Lower bound for that, in seconds: rounds may be shorter than a busy machine's response time."""

BEHIND_ALL_FRACTION = 0.15
"""Fraction of the epoch's time by which one slot may be later than all others, with results or with Finished."""

COMBINED_FRACTION = 0.18
"""The same for both added up."""

BEHIND_MOST_FRACTION = 1.0
"""Fraction of the epoch's time by which a slot may be later than two thirds of the trainers, with results or with Finished."""

LAST_WAITER_FRACTION = 0.1
"""Fraction of a round's usual time for which a member waits on for results while nobody else does: less than BEHIND_ALL_FRACTION,
so that nobody looks late because another member withholds a result from it alone."""

LAST_WAITER_MIN_SECONDS = 0.25
"""Lower bound for that, in seconds."""

NEARLY_SPENT_FRACTION = 0.5
"""Fraction of its budget that a slot must have used before we may continue without its result: others, who began to wait
slightly earlier, no longer wait for it. A slow connection of our own makes all results equally late, and uses nobody's
budget."""

SPARE_STATEMENTS = 2
"""Statements that a quorum must be able to do without for this: one liar's and ours."""

MAX_STRAGGLERS = 1
"""Others that may lack Finished and no longer be waited for: one liar. Two that wait for the same result go on waiting, because
a quorum may not do without both and a liar."""

BEHIND_ALL, BEHIND_MOST = 0, 1
"""Measures: lateness compared with all trainers but one, and with two thirds of them."""

Kind = Literal["results", "finished"]


def min_finished(expected: int) -> int:
    """How many of so many trainers must be done before any counts as late; until then all are waited for."""
    return min(max(expected - 1, 1), quorum(expected))


@dataclass(frozen=True, slots=True)
class Awaited:
    """What is awaited from trainers in a round. times: when they were done, by slot; expected: all slots that must be done."""

    kind: Kind
    times: Mapping[int, float]
    expected: Sequence[int]

    def reference_times(self) -> list[tuple[int, float]]:
        """When all but one were done, and when two thirds were, as far as that has happened: by measure."""
        count = len(self.expected)
        if len(self.times) < min_finished(count):
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
        references = what.reference_times() if waited else ()
        elapsed = 0.0 if self.began is None else now - self.began
        for measure, reference in references:
            left = max(GRACE_ROUNDS * self._usual.get(measure, reference - opened), MIN_GRACE_SECONDS) - (now - reference)
            share = BEHIND_ALL_FRACTION if measure == BEHIND_ALL else BEHIND_MOST_FRACTION
            waited = frozenset([slot for slot in waited if self._spent_on(what.kind, measure, slot) <= left + share * elapsed])
            if measure == BEHIND_ALL:
                waited = frozenset([slot for slot in waited if self._spent_in_all(slot) <= left + COMBINED_FRACTION * elapsed])
        return waited

    def nearly_spent(self, slot: int, what: Awaited, *, opened: float, now: float) -> bool:
        """Whether an unfinished slot has used most of the time by which it may be later than all others but one."""
        elapsed = 0.0 if self.began is None else now - self.began
        for measure, reference in what.reference_times():
            if measure == BEHIND_ALL:
                at_once, late = (
                    max(GRACE_ROUNDS * self._usual.get(measure, reference - opened), MIN_GRACE_SECONDS),
                    now - reference,
                )
                alone = (self._spent_on(what.kind, measure, slot) + late) / (at_once + BEHIND_ALL_FRACTION * elapsed)
                together = (self._spent_in_all(slot) + late) / (at_once + COMBINED_FRACTION * elapsed)
                return max(alone, together) >= NEARLY_SPENT_FRACTION

        return False

    def should_stop_waiting(
        self, lacking: Iterable[int], results: Awaited, finished: Awaited, *, own: int, witnesses: int, opened: float, now: float
    ) -> bool:
        """Whether a member that lacks results should stop waiting, because nobody else who is waited for still waits.

        lacking: slots whose results it lacks, of those in `results`. finished: members that sent Finished. own: its slot.
        witnesses: how many will attest to the results. opened: when the round began.
        """
        if witnesses - quorum(witnesses) < SPARE_STATEMENTS:
            return False
        if not all(self.nearly_spent(slot, results, opened=opened, now=now) for slot in lacking):
            return False

        others = [slot for slot in finished.expected if slot != own]
        waiting = [slot for slot in others if slot not in finished.times]
        done = [finished.times[slot] for slot in others if slot in finished.times]
        if not done or len(waiting) > MAX_STRAGGLERS:
            return False

        without_us = Awaited("finished", finished.times, others)
        if self.waited_for(waiting, without_us, opened=opened, now=now):
            return False

        usual = self._usual.get(BEHIND_ALL, max(done) - opened)
        return now >= max(done) + max(LAST_WAITER_FRACTION * usual, LAST_WAITER_MIN_SECONDS)

    def charge(self, what: Awaited, *, opened: float, now: float) -> None:
        """A round is over: record how late each slot was, or is by now."""
        for measure, reference in what.reference_times():
            for slot in what.expected:
                late = min(what.times.get(slot, now), now) - reference
                if late > 0:
                    self._spent[what.kind, measure, slot] = self._spent_on(what.kind, measure, slot) + late
            if what.kind == "finished":
                self._usual[measure] = min(self._usual.get(measure, reference - opened), reference - opened)

    def _spent_on(self, kind: Kind, measure: int, slot: int) -> float:
        return self._spent.get((kind, measure, slot), 0.0)

    def _spent_in_all(self, slot: int) -> float:
        """What a slot has used of both kinds, compared with all trainers but one."""
        return self._spent_on("results", BEHIND_ALL, slot) + self._spent_on("finished", BEHIND_ALL, slot)
