"""Tracks the state of every sample: each is in exactly one place from its assignment to the end of the run (protocol F2 and F14).

Samples are bits of integers, so a few operations compare a whole run's samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psyche_core.coordinator.commands import Equivocation, RoundSettled
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.round.witness import tolerated
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.simulator.run_result import InvariantViolation
from psyche_core.types import MAX_WITNESSES, BatchId, RunState, WitnessStatement


def bits(batches: Iterable[BatchId]) -> int:
    """Samples as one bit each."""
    found = 0
    for batch in batches:
        found |= ((1 << len(batch)) - 1) << batch.first
    return found


class SampleTracker:
    """The state of every sample. honest: signers of members that never lie.

    accepted: by (height, step) of a round, its accepted samples, once per settled round; of_liars: those of them that are
    liars'. last: rounds settled when their epoch ended; evidence about them is accepted in the cooldown only. evidence_lost:
    rounds stored when all members died at once, and with them the evidence that only they had, or when a cooldown ended during
    which nobody reached the coordinator. without_honest_quorum: rounds
    attested by a committee whose honest witnesses alone were no quorum, so that a liar could void any part of them. divisible:
    rounds with so few statements about a liar's accepted share that two of its results may both have votes enough.
    """

    def __init__(self, *, honest: frozenset[bytes]) -> None:
        self.accepted: dict[tuple[int, int], list[int]] = {}
        self.of_liars: dict[tuple[int, int], int] = {}
        self.last: set[tuple[int, int]] = set()
        self.evidence_lost: set[tuple[int, int]] = set()
        self.without_honest_quorum: set[tuple[int, int]] = set()
        self.divisible: set[tuple[int, int]] = set()
        self._honest = honest
        self._accepted_ever = 0
        self._settled_height = -1
        self._epoch = -1
        self._at_step: dict[int, int] = {}
        self._lost: dict[int, int] = {}
        self._found_again = 0

    def epoch_ended(self, state: CoordinatorState) -> None:
        """An epoch has ended: record what is accepted by now, for a run that later goes back to this end."""
        self._at_step[state.progress.step - 1] = self._accepted_ever

    def went_back(self, state: CoordinatorState) -> None:
        """The run continues from an earlier step (or its checkpoint): samples accepted since must be accepted again.

        Samples counted as lost in these steps are trained again too; the coordinator's count does not change.
        """
        step = state.progress.step - 1
        for key, known in self.accepted.items():
            if key[1] > step and step not in self._at_step:
                for samples in known:
                    self._accepted_ever &= ~samples
        if step in self._at_step or step == 0:
            self._accepted_ever = self._at_step.get(step, 0)
        else:
            self._found_again += sum(self._lost.pop(at) for at in list(self._lost) if at > step)
        self.accepted = {key: known for key, known in self.accepted.items() if key[1] <= step}
        self._settled_height = self._epoch = -1

    def all_died(self, state: CoordinatorState) -> None:
        """All members died at once: evidence about the stored rounds may be gone."""
        self.evidence_unheard(state)

    def evidence_unheard(self, state: CoordinatorState) -> None:
        """Nobody can tell the coordinator what it should know of the stored rounds any more."""
        self.evidence_lost.update((stored.height, stored.step) for stored in state.epoch.rounds)

    def copy(self) -> SampleTracker:
        """A copy, to continue from later."""
        other = SampleTracker(honest=self._honest)
        other.accepted = {key: list(known) for key, known in self.accepted.items()}
        other.of_liars = dict(self.of_liars)
        other.last, other.evidence_lost = set(self.last), set(self.evidence_lost)
        other.without_honest_quorum, other.divisible = set(self.without_honest_quorum), set(self.divisible)
        other._accepted_ever = self._accepted_ever
        other._settled_height, other._epoch = self._settled_height, self._epoch
        other._at_step = dict(self._at_step)
        other._lost, other._found_again = dict(self._lost), self._found_again
        return other

    def of_honest_before(self, step: int) -> int:
        """The samples of honest members accepted before this step, in rounds with an honest quorum."""
        found = 0
        for key, known in self.accepted.items():
            if key[1] < step and key not in self.without_honest_quorum:
                for samples in known:
                    found |= samples & ~self.of_liars[key]
        return found

    def settled(self, event: RoundSettled, state: CoordinatorState) -> None:
        """A round is decided. Recounts its acceptance: two thirds of the elected witnesses (F5, F6)."""
        round_ = state.round_at(event.height)
        if round_ is None:
            raise InvariantViolation("settled-rounds-are-stored", f"round {event.height} was settled and is not stored")

        assigned = shares(state, round_)
        attesting = state.round_at(event.height + 1)
        statements = attesting.statements if attesting is not None else ()
        elected = min(len(attesting.slots), state.config.witness_nodes or MAX_WITNESSES) if attesting is not None else 0
        rightly = []
        for slot in sorted(assigned):
            votes = sum(statement.participants[slot // 8] >> (slot % 8) & 1 for statement in statements)
            if votes and 3 * votes >= 2 * elected and slot not in round_.voided:
                rightly.append(slot)
        if rightly != sorted(event.accepted):
            sentence = f"of round {event.height} slots {event.accepted} were accepted, {rightly} had their quorum"
            raise InvariantViolation("two-thirds-of-the-witnesses-accept", sentence)

        taken = of_liars = 0
        for slot in event.accepted:
            taken |= bits(assigned[slot])
            if not self._is_honest(state, slot):
                of_liars |= bits(assigned[slot])
        if self._accepted_ever & taken:
            sentence = f"round {event.height} of epoch {event.epoch} accepted samples that were accepted before"
            raise InvariantViolation("no-sample-accepted-twice", sentence)

        self._accepted_ever |= taken
        key = (event.height, event.step)
        self.accepted.setdefault(key, []).append(taken)
        self.of_liars[key] = self.of_liars.get(key, 0) | of_liars
        if state.run_state is RunState.Cooldown:
            self.last.add(key)
        if attesting is not None and elected:
            committee = witness_slots(state, attesting)
            honest = sum(self._is_honest(state, slot) for slot in committee)
            if 3 * honest < 2 * elected:
                self.without_honest_quorum.add(key)
            if any(self._divides(state, slot, statements, elected=elected) for slot in event.accepted):
                self.divisible.add(key)
        self._epoch, self._settled_height = event.epoch, event.height

    def _is_honest(self, state: CoordinatorState, slot: int) -> bool:
        return state.epoch.clients[slot].id.signer in self._honest

    def _divides(self, state: CoordinatorState, slot: int, statements: Sequence[WitnessStatement], *, elected: int) -> bool:
        """Whether a liar's share has so few statements that two of its results may both have votes enough.

        A result needs the votes of all s statements about the share but f, the number of liars tolerated. Each of l lying
        witnesses may vote for both results and each honest one votes for one of them, so both can have enough if
        2 (s - f) <= s + l.
        """
        if self._is_honest(state, slot):
            return False

        about = [one for one in statements if one.participants[slot // 8] >> (slot % 8) & 1]
        lying = sum(not self._is_honest(state, one.index) for one in about)
        return 2 * (len(about) - tolerated(elected)) <= len(about) + lying

    def evidence(self, old: CoordinatorState, new: CoordinatorState, command: Equivocation) -> None:
        """A trainer provably signed two results: its share of a settled round may become void (and assigned again) or lost."""
        before, after = old.round_at(command.height), new.round_at(command.height)
        if before is None or after is None:
            return

        voided = after.voided != before.voided
        lost = new.lost_samples - old.lost_samples
        share = bits(shares(old, before).get(command.index, ()))
        if voided and lost < 0:  # a proof with a third result: samples that were counted as lost are in the queue now
            if share.bit_count() != -lost or share & ~bits(new.requeue):
                raise InvariantViolation(
                    "found-samples-are-queued", f"{-lost} lost samples were found again, of a share of {share.bit_count()}"
                )
        elif not share & self._accepted_ever or not (voided or lost):
            return

        self._accepted_ever &= ~share
        if lost:
            self._lost[before.step] = self._lost.get(before.step, 0) + lost
        known = self.accepted.get((before.height, before.step), [])
        without = [samples & ~share for samples in known]
        # Nobody knows whether the result of a lost share can be found, so both are right, but all must do the same.
        self.accepted[(before.height, before.step)] = without if voided else [*known, *without]

    def trained_again(self, samples: int) -> None:
        """Accepted samples of a convicted member's share are in the queue again, and may be accepted once more."""
        if samples & ~self._accepted_ever:
            raise InvariantViolation("only-accepted-shares-are-challenged", "a convicted share was never accepted")

        self._accepted_ever &= ~samples

    def balance(self, state: CoordinatorState) -> None:
        """Each sample assigned so far is accepted, queued again, in a round not settled yet, or counted as lost."""
        waiting, in_progress = bits(state.requeue), self._in_progress(state)
        assigned = (1 << state.progress.data_index) - 1
        placed = self._accepted_ever | waiting | in_progress
        doubled = (self._accepted_ever & waiting) | (self._accepted_ever & in_progress) | (waiting & in_progress)
        if doubled or placed & ~assigned:
            strange = (placed & ~assigned).bit_count()
            sentence = f"{doubled.bit_count()} samples are in two places, {strange} were never assigned"
            raise InvariantViolation("no-sample-in-two-places", sentence)

        missing = (assigned & ~placed).bit_count()
        if missing != state.lost_samples - self._found_again:
            sentence = f"{missing} samples are in no place and {state.lost_samples} are counted as lost"
            raise InvariantViolation("no-sample-skipped", sentence)

    def _in_progress(self, state: CoordinatorState) -> int:
        """Samples of rounds in progress: the current one and, unless it is settled, the one before."""
        if state.run_state not in (RunState.RoundTrain, RunState.RoundWitness):
            return 0

        settled = self._settled_height if self._epoch == state.progress.epoch else -1
        return bits(batch for stored in state.epoch.rounds[-2:] if stored.height > settled for batch in stored.batches)
