"""A simulated member's disk: checkpoints, and a journal of steps applied and results verified since the last one.

It survives the process when a fault says so. Writes reach the disk at once, as the real journal syncs before a statement is
sent. Which checkpoints stay is the rule of `training.checkpoints.checkpoint.keep_last`. Loading follows
`training.checkpoints.initial_model` and `client.runtime.restoring`: it takes a checkpoint of the run's generation, or of an end
that a quorum signed, none newer than the run; then the journal's steps as far as the run knows them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from psyche_core.client.machine.actions import KeptResult
from psyche_core.client.machine.epoch import masters_due
from psyche_core.client.machine.rounds.settled_rounds import first_conflicting_step
from psyche_core.coordinator.history import signed_digests
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.simulator.replicas.replica import Payload
from psyche_core.types import Decision
from psyche_core.wire.messages import Result

KEPT = 4
"""Number of checkpoints of epoch ends that are kept, beside the newest one and the bases of both journals."""

SMALL_JOURNALS = 0.1
"""Probability that the journals of a run's members are full after a few rounds, so that they save checkpoints in mid-epoch."""


@dataclass(frozen=True, slots=True)
class SavedMasters:
    """Masters on the disk. step: the last one in them; generation: of the run; digest: full digest.

    decision: of that step, None where it is unknown, as for a model that was loaded. mid_epoch: whether it is no epoch's end.
    """

    step: int
    generation: int
    masters: object
    digest: bytes
    decision: Decision | None = None
    mid_epoch: bool = True


class PendingResult(NamedTuple):
    """A verified result in the journal, with the fields that `settled_rounds` uses."""

    epoch: int
    height: int
    slot: int
    commitment: bytes
    payload_hash: bytes
    step: int

    @classmethod
    def of(cls, kept: KeptResult) -> PendingResult:
        """The part of a result that is kept."""
        result: Result = kept.result
        return cls(result.epoch, result.height, kept.slot, result.commitment, result.payload_hash, result.step)


class Disk:
    """See the module. pending: results verified since the journal's base, with their payloads.

    The journal before this one is kept, because a coordinator restored from an older state may need a step before its base.
    rounds: number of rounds at which the journal is full, so that a checkpoint is saved in mid-epoch; None for no limit.
    """

    def __init__(self, *, rounds: int | None = None) -> None:
        self._rounds = rounds
        self.pending: dict[PendingResult, Payload] = {}
        self._saved: list[SavedMasters] = []
        self._journal: list[SavedMasters] = []
        self._earlier: list[SavedMasters] = []
        self._earlier_pending: dict[PendingResult, Payload] = {}
        self._discarded: list[SavedMasters] = []
        self._suspended = False

    # ------------------------------------------------------------------------------------ written

    def save(self, saved: SavedMasters) -> None:
        """Write a checkpoint and start the journal again from it. Checkpoints that the run has left behind are set aside."""
        self._set_aside(saved.step)
        there = self.at_end(saved.step)
        if there is not None:
            self._saved.remove(there)
            self._discarded += [there] if there.digest != saved.digest else []
        self._saved.append(saved)
        self.begin(saved)
        self._remove_old()

    def begin(self, base: SavedMasters) -> None:
        """Start the journal again. The one before is kept if it is of the same generation and leads further than its earlier one.

        Results of later steps are taken over.
        """
        same = bool(self._journal) and self._journal[0].generation == base.generation
        if same and not self._adds_nothing():
            self._earlier, self._earlier_pending = self._journal, self.pending
        self.pending = {known: payload for known, payload in self.pending.items() if same and known.step > base.step}
        self._journal = [base]
        self._suspended = False

    def _adds_nothing(self) -> bool:
        """Whether the journal has only a base, to which the one before it leads, too."""
        base = self._journal[0]
        led_to = [one.step for one in self._earlier if one.generation == base.generation]
        return len(self._journal) == 1 and base.step in led_to

    def _remove_old(self) -> None:
        """Delete old checkpoints; never those with which a journal begins."""
        kept = {one.step for one in self._saved[-1:]}
        kept |= {one.step for one in [one for one in self._saved if not one.mid_epoch][-KEPT:]}
        bases = self.bases
        self._saved = [one for one in self._saved if one.step in kept or (one.step, one.digest) in bases]

    @property
    def bases(self) -> frozenset[tuple[int, bytes]]:
        """Step and digest of the model with which each journal begins."""
        return frozenset((one[0].step, one[0].digest) for one in (self._journal, self._earlier) if one)

    def suspend(self) -> None:
        """Take nothing into the journal before it starts again; what it has stays."""
        self._suspended = True

    def applied(self, saved: SavedMasters, *, can_write: bool = True) -> None:
        """A step was applied: append it to the journal if it follows its last step, else write a checkpoint if there is room."""
        last = self._journal[-1] if self._journal else None
        if last is not None and not self._suspended and (last.generation, last.step) == (saved.generation, saved.step - 1):
            self._journal.append(saved)
            if can_write and self._rounds is not None and len(self._journal) > self._rounds:
                self.save(saved)
        elif can_write:
            self.save(saved)

    def keep(self, results: Iterable[tuple[KeptResult, Payload]]) -> None:
        """Write verified results and their payloads to the journal."""
        if not self._suspended:
            self.pending |= {PendingResult.of(known): payload for known, payload in results}

    # ------------------------------------------------------------------------------------ read

    def at_end(self, step: int) -> SavedMasters | None:
        """The checkpoint of that step."""
        return next((saved for saved in self._saved if saved.step == step), None)

    @property
    def restorable(self) -> tuple[SavedMasters, ...]:
        """All masters that this journal and the one before it can restore, oldest first."""
        return (*self._earlier, *self._journal)

    @property
    def written(self) -> tuple[SavedMasters, ...]:
        """All masters on the disk: also checkpoints, set aside or not."""
        return (*self.restorable, *self._saved, *self._discarded)

    def saved_signed(self, state: CoordinatorState) -> bool:
        """Whether a checkpoint, set aside or not, is of the state's step and of the digest that members signed."""
        due = masters_due(state)
        signed = signed_digests(state).get(due)
        return any((one.step, one.digest) == (due, signed) for one in (*self._saved, *self._discarded))

    def reaches_stored(self, state: CoordinatorState) -> bool:
        """Whether the journal begins at the run's stored model or passes it, so that this model is worth loading."""
        return bool(self._journal) and self._journal[0].step <= state.stored.step <= self._journal[-1].step

    def checkpoint(self, state: CoordinatorState) -> SavedMasters | None:
        """The newest checkpoint that belongs to the run in this state."""
        due, ends, base = masters_due(state), signed_digests(state), self._base_of_history(state)
        found = [
            saved
            for saved in self._saved
            if saved.step <= due
            and (
                ends[saved.step] == saved.digest
                if saved.step in ends
                else not _conflicts(state, saved) and (saved.generation == state.generation or (saved.step, saved.digest) == base)
            )
        ]
        return max(found, key=lambda saved: saved.step, default=None)

    def _base_of_history(self, state: CoordinatorState) -> tuple[int, bytes] | None:
        if not self._journal:
            return None
        base = self._journal[0]
        until = self._last_valid_step(state, journal=self._journal)
        other = signed_digests(state).get(base.step) not in (None, base.digest)
        return None if until is None or until < base.step or other else (base.step, base.digest)

    def replayed(
        self, state: CoordinatorState, *, step: int | None, digest: bytes, can_write: bool = True
    ) -> tuple[SavedMasters, bool] | None:
        """The masters the journal restores from those with this digest after `step`, and whether results after that may follow.

        None if the journal does not begin with them. step: None for the model the run's checkpoint names. can_write: whether the
        journal can be written again; else rounds that the run has left are cut off, with the results after the first of them.
        One of another generation takes nothing more then.
        """
        self._suspended = False
        if not self._journal:
            return None

        base, last = self._journal[0], self._journal[-1]
        until = self._last_valid_step(state, journal=self._journal)
        begins = step in (None, base.step) and digest == base.digest
        if until is None or until < base.step or not (begins or (step is not None and base.step < step <= last.step)):
            return None

        at = min(max(until, base.step if begins or step is None else step), last.step)
        reached = self._journal[at - base.step]
        signed = signed_digests(state).get(at)
        if (signed is not None or last.generation != state.generation) and signed != reached.digest:
            return None  # the real journal detects this mismatch and is set aside

        same = last.generation == state.generation
        if at < last.step:
            self._set_aside(at, signed=signed_digests(state))
        if (at < last.step or not same) and not self._rewind(at, generation=state.generation, can_write=can_write):
            self._suspended = True
            return reached, False
        return self._journal[-1], same

    def _rewind(self, at: int, *, generation: int, can_write: bool) -> bool:
        """Keep the journal's steps up to `at`, in this generation now. A full disk has no room for a new journal.

        Then this one is cut off in place, and one of another generation takes nothing more: False.
        """
        kept = [one for one in self._journal if one.step <= at]
        same = kept[0].generation == generation
        if not can_write and len(kept) < len(self._journal):
            self.pending = {known: payload for known, payload in self.pending.items() if known.step <= at + 1}
        if not can_write and not same:
            self._journal = kept
            return False

        if not same:
            self.pending = {}  # results of rounds that the run has left behind
        self._journal = [replace(one, generation=generation) for one in kept]
        return True

    def restore_earlier_journal(self, state: CoordinatorState) -> None:
        """Take the journal before this one if the coordinator is at a step before this one's base, or decided it otherwise.

        Checkpoints that were set aside count again if members signed their models after all, or the journal begins with them.
        """
        ends = signed_digests(state)
        self._take_back([one for one in self._discarded if ends.get(one.step) == one.digest])
        up_to = self._needs_earlier(state) if self._journal and self._earlier else None
        if up_to is not None:
            self._journal, self.pending = self._earlier, self._earlier_pending
            self._earlier, self._earlier_pending = [], {}
            self._set_aside(up_to, signed=ends)
        base = self._base_of_history(state)
        self._take_back([one for one in self._discarded if (one.step, one.digest) == base][:1])

    def _needs_earlier(self, state: CoordinatorState) -> int | None:
        """The last step of the run's history in the journal before this one, None if this one is the right one."""
        due, ends, earlier, base = masters_due(state), signed_digests(state), self._earlier, self._journal[0]
        if earlier[0].step > due or (base.step <= due and ends.get(base.step) == base.digest):
            return None

        decided = self._decision_at(base)
        conflicts = _conflicts(state, replace(base, decision=decided))
        if _conflicts(state, replace(earlier[0], decision=self._decision_at(earlier[0]))):
            return None
        refused = base.step > due or base.step in ends or conflicts
        if earlier[0].generation != state.generation:
            reached = any(earlier[0].step <= step <= min(due, earlier[-1].step) for step in ends)
            return due if refused and reached else None

        anew = first_conflicting_step(state, _decisions(earlier))
        up_to = due if anew is None else min(due, anew - 1)
        return up_to if up_to < base.step and (refused or _leads_to(earlier, base, decided)) else None

    def _take_back(self, wanted: list[SavedMasters]) -> None:
        """Let checkpoints that were set aside count again. Those that have their place now are set aside for them."""
        for one in wanted:
            there = self.at_end(one.step)
            if there is not None and there.digest == one.digest:
                continue
            self._discarded.remove(one)
            if there is not None:
                self._saved.remove(there)
                self._discarded.append(there)
            self._saved = sorted([*self._saved, one], key=lambda saved: saved.step)

    def _set_aside(self, above: int, *, signed: Mapping[int, bytes] = MappingProxyType({})) -> None:
        """Checkpoints of later steps are of a history that the run has left, except those that members signed."""
        gone = [one for one in self._saved if one.step > above and signed.get(one.step) != one.digest]
        self._discarded += gone
        self._saved = [one for one in self._saved if one not in gone]

    def _last_valid_step(self, state: CoordinatorState, *, journal: list[SavedMasters]) -> int | None:
        due, base, last = masters_due(state), journal[0], journal[-1]
        if _conflicts(state, replace(base, decision=self._decision_at(base))):
            return None  # though its digest may be that of the step before, where no result was accepted
        if last.generation == state.generation:
            anew = first_conflicting_step(state, _decisions(journal))
            return due if anew is None else min(due, anew - 1)

        reach = range(base.step, min(due, last.step) + 1)
        return max((step for step in signed_digests(state) if step in reach), default=None)

    def held(self, state: CoordinatorState) -> tuple[tuple[int, bytes], ...]:
        """Steps and digests of the signed ends that a checkpoint holds or one of both journals reaches."""
        ends = signed_digests(state)
        found = {saved.step: saved.digest for saved in self._saved if ends.get(saved.step) == saved.digest}
        if self._journal:
            reach = [*range(self._journal[0].step, self._journal[-1].step + 1), *self._reach_of_earlier(state)]
            found |= {step: ends[step] for step in reach if step in ends}
        return tuple(sorted(found.items()))

    def _reach_of_earlier(self, state: CoordinatorState) -> range:
        """Steps that the journal before this one can restore, if the run goes back to one of them."""
        earlier, base = self._earlier, self._journal[0]
        if not earlier or earlier[0].generation != base.generation:
            return range(0)
        until = self._last_valid_step(state, journal=earlier)
        if until is None or signed_digests(state).get(earlier[0].step) not in (None, earlier[0].digest):
            return range(0)
        if not _leads_to(earlier, base, self._decision_at(base)):
            return range(0)
        return range(earlier[0].step, min(until, earlier[-1].step) + 1)

    def _decision_at(self, base: SavedMasters) -> Decision | None:
        """What decided the last step of the checkpoint with which a journal begins, None if that is unknown."""
        there = self.at_end(base.step)
        return there.decision if there is not None and there.digest == base.digest else None


def _decisions(journal: list[SavedMasters]) -> list[Decision]:
    """The decisions about the rounds of a journal, whose first entry is its base."""
    return [saved.decision for saved in journal[1:] if saved.decision is not None]


def journal_rounds(of_run: random.Random, of_member: random.Random) -> int | None:
    """The rounds at which a member's journal is full, None for no limit; both streams are used for nothing else.

    In a few runs the model is so large that all journals are full after a few rounds, in others that of a few members.
    """
    for rng in (of_run, of_member):
        if rng.random() < SMALL_JOURNALS:
            return rng.randint(2, 8)
    return None


def _leads_to(earlier: list[SavedMasters], base: SavedMasters, decided: Decision | None) -> bool:
    """Whether a journal leads to another one's base, as far as the real one can know it. decided: the base's last step."""
    last = next((one for one in earlier if one.step == base.step), None)
    if last is None or last is earlier[0]:
        return last is not None and last.digest == base.digest
    if decided is None or last.decision is None:
        return True
    return last.decision.history == decided.history


def _conflicts(state: CoordinatorState, saved: SavedMasters) -> bool:
    """Whether the run has another decision about the last step of a checkpoint, within its generation."""
    if saved.decision is None or saved.generation != state.generation:
        return False
    return first_conflicting_step(state, (saved.decision,)) is not None
