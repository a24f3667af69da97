"""Restores the newest master weights that the run still accepts, from our disk: checkpoint, journal, and the coordinator's state.

The journal's rounds are applied again on top of the checkpoint, then the rounds that were accepted, according to the state, while
we were ending. They are applied up to the coordinator's step and never beyond it, because the coordinator may have been restored
from an older state. A journal of a history that the run has left is used up to a step that members signed. Blocking: call it in a
worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import BaseFileLock

from psyche_core.client.machine.epoch import masters_due
from psyche_core.client.machine.rounds.settled_rounds import first_conflicting_step, settled_rounds
from psyche_core.client.runtime.disk_ahead import DiskAhead
from psyche_core.client.runtime.journal_history import (
    decided_otherwise,
    decision_at_base,
    last_valid_step,
    leads_to,
    manifest_of_base,
    signed_ends,
)
from psyche_core.coordinator.state import NO_DIGEST, CoordinatorState
from psyche_core.errors import ModelError
from psyche_core.training.checkpoints.checkpoint import (
    remove_leftovers,
    set_aside,
    set_aside_sentence,
    take_back,
    why_unusable,
)
from psyche_core.training.checkpoints.folder_member import last_member, note_member
from psyche_core.training.checkpoints.initial_model import held, is_signed
from psyche_core.training.checkpoints.journal.contents import Recovered
from psyche_core.training.checkpoints.journal.journal import LEAST_LIMIT, Journal, default_limit
from psyche_core.training.checkpoints.journal.lock import lock_journal
from psyche_core.training.checkpoints.journal.replay import replay
from psyche_core.training.checkpoints.journal_records import AppliedRound, Header
from psyche_core.training.checkpoints.manifest import CheckpointManifest, step_and_digest

if TYPE_CHECKING:
    from psyche_core.training.trainer import Trainer

_FLOAT32 = 4


class ReplayFailed(ModelError):
    """The master weights match no step any more: build the model again, without the journal."""


@dataclass(slots=True)
class Restorer:
    """One client's checkpoints and journal. folder: of both. journal_size: limit in bytes, None for one that fits the model.

    member: our public key, to notice another member's folder; None skips that check. lasting: whether the next start has the same
    key. ahead: reports a coordinator that continues from a state older than our disk.
    """

    folder: Path
    journal_size: int | None
    report: Callable[[str], None]
    member: bytes | None = None
    lasting: bool = True
    journal: Journal | None = None
    ahead: DiskAhead = field(default_factory=DiskAhead)
    _lock: BaseFileLock | None = None
    _found: Recovered | None = None

    def close(self) -> None:
        """Close the journal. Idempotent."""
        if self.journal is not None:
            self.journal.close()
        if self._lock is not None:
            self._lock.release()
        self.journal = self._lock = self._found = None

    def lock_folder(self, run_id: str) -> None:
        """Lock the folder for this process before we join; further calls do nothing. Raises ConfigError."""
        if self._lock is None and self.journal is None:
            self._lock = lock_journal(self.folder, run_id)
            remove_leftovers(self.folder, run_id)
            if self.member is not None:
                self._look_whose(run_id, self.member)

    def _look_whose(self, run_id: str, ours: bytes) -> None:
        before = last_member(self.folder, run_id)
        if before is not None and before != ours:
            self.report(
                f"{self.folder} was last used by member {before.hex()[:16]}, and we are {ours.hex()[:16]}. Its checkpoints and "
                "journal are used all the same, and so is the optimizer's own state: the model is the same whoever saved it. "
                "That member's place in the run is not ours: the run knows us by our key. If this is a mistake, stop, and give "
                "that member's key (-i) or another --checkpoint-dir"
            )
        if self.lasting and before != ours:
            note_member(self.folder, run_id, ours)

    def restore(self, trainer: Trainer, state: CoordinatorState, *, step: int | None, use_journal: bool) -> int | None:
        """Bring the master weights up to date from the journal. Return the last step in them; None if unknown.

        step: the last one in the trainer's master weights now; None for the model that the run's checkpoint names. use_journal:
        False starts a new journal. Raises ReplayFailed, ModelError, ConfigError.
        """
        journal = self._open(state)
        journal.set_limit(self.journal_size or default_limit(trainer.parameter_count * _FLOAT32))
        if step is None and state.stored.digest == trainer.full_digest():
            step = state.stored.step  # the stored model is the model of a signed end: our journal may continue from there
        at = self._replayed(journal, trainer, state, step=step) if use_journal else None
        if at is not None:
            return at

        base = state.stored.step if step is None and state.from_checkpoint else step  # there may be no epoch yet
        if base is not None:
            self._written(journal, partial(self._begin, journal, base, digest=trainer.full_digest(), state=state))
        return step

    def _begin(self, journal: Journal, base: int, *, digest: bytes, state: CoordinatorState) -> None:
        """Start a new journal. Keep the old one under another name if it has later rounds that do not follow this model."""
        if journal.last_step is not None and journal.last_step > base:
            reason, begins = f"its rounds do not follow the model of step {base}", journal.header
            if begins is not None and begins.base_step > base:
                reason = f"{why_unusable(self.folder, state.run_id, begins.base_step)}, and {reason}"
            journal.set_aside(reason)
        ends = (end for end in (*state.ends, state.stored) if (end.step, end.digest) == (base, digest))
        history = next((end.history for end in ends), NO_DIGEST)
        journal.begin(base, digest, state.generation, base_history=history)

    def _written(self, journal: Journal, change: Callable[[], object]) -> bool:
        """Change the journal on the disk; return whether that succeeded.

        If writing fails, for instance because the disk is full, the client continues without a journal until its next checkpoint.
        The file stays, but without the rounds that the run has left: `rewind` cuts them off.
        """
        try:
            change()
        except ModelError as error:
            journal.suspend()
            self.report(f"{error}. The client continues without a journal until it can save a checkpoint")
            return False
        return True

    def held(self, state: CoordinatorState) -> tuple[tuple[int, bytes], ...]:
        """Return steps and digests of the signed ends that are in our folder or that one of our two journals can restore."""
        ends = signed_ends(state)
        found = dict(held(self.folder, state.run_id, ends, report=self.report))
        journal = self.journal
        if journal is not None and journal.header is not None and journal.last_step is not None:
            reach = [*range(journal.header.base_step, journal.last_step + 1), *self._reach_of_earlier(journal, state)]
            found |= {step: digest for step, digest in ends.items() if step in reach}
        return tuple(sorted(found.items()))

    def _reach_of_earlier(self, journal: Journal, state: CoordinatorState) -> range:
        """Return the steps that the journal before the present one can restore, if the run goes back to one of them."""
        earlier, present = journal.earlier(), journal.header
        if earlier is None or present is None:
            return range(0)

        with earlier:
            header, rounds = earlier.recovered.header, earlier.recovered.rounds
            until = self._until(state, header, rounds)
        if until is None or signed_ends(state).get(header.base_step) not in (None, header.base_digest):
            return range(0)
        if not leads_to(header, rounds, present, decision_at_base(self.folder, state.run_id, present)):
            return range(0)
        return range(header.base_step, min(until, header.base_step + len(rounds)) + 1)

    def base_of_history(self, state: CoordinatorState) -> tuple[int, bytes] | None:
        """Return step and full digest of the model from which our journal leads into the run's history; None if it does not.

        A checkpoint of that model is useful whatever its generation: a run that went back to a signed end continues from that
        end, and perhaps only our journal leads there. Call `look_back` before.
        """
        found = self._found
        until = None if found is None else self._until(state, found.header, found.rounds)
        if found is None or until is None or until < found.header.base_step:
            return None
        base, digest = found.header.base_step, found.header.base_digest
        return (base, digest) if signed_ends(state).get(base) in (None, digest) else None

    def reaches_stored(self, state: CoordinatorState) -> bool:
        """Return whether our journal begins at the run's stored model or passes it, so that loading that model is useful.

        Our journal may have begun at an earlier stored model, if the disk has had no space for checkpoints since.
        """
        self.look_back(state)
        found = self._found
        return found is not None and found.header.base_step <= state.stored.step <= found.last_step

    def look_back(self, state: CoordinatorState) -> None:
        """Read our journal, before a checkpoint is chosen. Call it again for each start. Raises ModelError, ConfigError.

        The journal before it is used if the run or its coordinator went back to before our last checkpoint, or has since decided
        a round of that checkpoint in another way. Later checkpoints are then set aside, because the run will have another model
        at their steps. A conflict with the earlier journal counts only if that journal leads to the present base and nobody
        signed this base, because members that fetched a model have a base from another history than their earlier journal.
        """
        journal, due = self._open(state), masters_due(state)
        ends = signed_ends(state)
        self._take_back(state, is_signed(ends))

        def reach(header: Header, rounds: Sequence[AppliedRound]) -> int | None:
            signed = ends.get(header.base_step)
            if signed is not None and signed != header.base_digest:
                return None
            until = self._until(state, header, rounds)
            return None if until is None else min(until, header.base_step + len(rounds))

        def certain(header: Header) -> bool:
            return (
                ends.get(header.base_step) == header.base_digest
                and manifest_of_base(self.folder, state.run_id, header) is not None
            )

        journal.take_back(reach, certain=certain)
        self._found = found = journal.read()
        if found is None:
            return

        decided = decision_at_base(self.folder, state.run_id, found.header)
        self.ahead.compare(found, state, based=decided, report=self.report)
        base, up_to = found.header.base_step, due
        if base <= due and ends.get(base) == found.header.base_digest:
            self._take_back_base(state)
            return  # this journal begins in the run's history, whatever the journal before it contains

        refused = base > due or base in ends or decided_otherwise(state, found.header, decided)

        def helps(header: Header, rounds: Sequence[AppliedRound]) -> bool:
            nonlocal up_to
            if header.base_step > due or decided_otherwise(state, header, decision_at_base(self.folder, state.run_id, header)):
                return False
            if header.generation != state.generation:  # the run went back to before our last checkpoint
                reach = range(header.base_step, min(due, rounds[-1].step if rounds else header.base_step) + 1)
                return refused and any(step in reach for step in ends)

            anew = first_conflicting_step(state, rounds)
            if anew is not None:
                up_to = min(up_to, anew - 1)
            return up_to < base and (refused or leads_to(header, rounds, found.header, decided))

        earlier = journal.read_earlier(helps)
        if earlier is not None:
            self._found = earlier
            self._set_aside(state, above=up_to)
        self._take_back_base(state)

    def _take_back_base(self, state: CoordinatorState) -> None:
        """Rename back the checkpoint from which our journal leads into the run's history."""
        base_of_history = self.base_of_history(state)
        self._take_back(
            state, lambda manifest: manifest.instance == state.instance.hex() and step_and_digest(manifest) == base_of_history
        )

    def _take_back(self, state: CoordinatorState, wanted: Callable[[CheckpointManifest], bool]) -> None:
        """Rename back checkpoints that were set aside but belong to the run."""
        try:
            for path in take_back(self.folder, state.run_id, wanted=wanted):
                self.report(f"the checkpoint {path} belongs to the run's history: it was set aside before, and has its name back")
        except ModelError as error:
            self.report(str(error))

    def _until(self, state: CoordinatorState, header: Header, rounds: Sequence[AppliedRound]) -> int | None:
        """Return `last_valid_step`; also None if the run has decided the last step of the journal's base in another way.

        Such a base is not always refused as a checkpoint: if no result of a step was accepted, it equals the model before.
        """
        refused = decided_otherwise(state, header, decision_at_base(self.folder, state.run_id, header))
        return None if refused else last_valid_step(header, rounds, state)

    def _set_aside(self, state: CoordinatorState, *, above: int) -> None:
        """Rename checkpoints of later steps: they belong to a history that the run has left, and the run will have others there.

        Checkpoints of ends that members signed keep their names.
        """
        try:
            for path in set_aside(self.folder, state.run_id, above=above, signed=is_signed(signed_ends(state))):
                self.report(set_aside_sentence(path, above=above, instance=state.instance))
        except ModelError as error:
            self.report(str(error))

    def _open(self, state: CoordinatorState) -> Journal:
        if self.journal is None:
            limit = self.journal_size or LEAST_LIMIT
            self.journal = Journal.open(
                self.folder, state.run_id, instance=state.instance, limit_bytes=limit, report=self.report, lock=self._lock
            )
        return self.journal

    def _replayed(self, journal: Journal, trainer: Trainer, state: CoordinatorState, *, step: int | None) -> int | None:
        if self._found is None:
            self.look_back(state)
        recovered, self._found = self._found, None
        if recovered is None:
            return None

        until = self._until(state, recovered.header, recovered.rounds)
        base = recovered.header.base_step
        if (
            until is not None
            and until >= base
            and step is not None
            and step < base
            and self._reached(journal, trainer, step, base)
        ):
            step = base
        begins = trainer.full_digest() == recovered.header.base_digest if step in (None, base) else False
        if until is None or not (begins or (step is not None and base < step <= recovered.last_step)) or until < base:
            journal.read(generation=state.generation)  # one of another generation is set aside
            return None

        start = None if begins else step
        try:
            at = replay(trainer, recovered, until=max(until, base if start is None else start), start=start)
        except ModelError as error:
            message = f"the journal cannot be replayed: {error}"
            raise ReplayFailed(message) from error

        signed = signed_ends(state).get(at)
        if (signed is not None or recovered.header.generation != state.generation) and trainer.full_digest() != signed:
            message = f"the journal does not lead to the model that the run's members signed after step {at}"
            raise ReplayFailed(message)
        rewinds = recovered.header.generation != state.generation or at < recovered.last_step
        kept = not rewinds or self._written(journal, partial(journal.rewind, at, generation=state.generation))
        if at < recovered.last_step:
            self._set_aside(state, above=at)
        return self._settled(journal, trainer, state, recovered, at=at) if kept else at

    def _reached(self, journal: Journal, trainer: Trainer, step: int, base: int) -> bool:
        """Return whether the earlier journal led from our checkpoint of `step` to this journal's base; the model is then that
        base.

        This helps if the base's checkpoint is damaged: the checkpoint before it and both journals lead as far. Raises
        ReplayFailed.
        """
        earlier = journal.earlier()
        if earlier is None:
            return False

        with earlier:
            known = earlier.recovered
            if not known.header.base_step <= step < base <= known.last_step:
                if earlier.damage:
                    said = f"damaged after step {known.last_step}: {earlier.damage}"
                    self.report(f"the journal before the last checkpoint is {said}; so it does not lead to step {base}")
                return False
            if step == known.header.base_step and trainer.full_digest() != known.header.base_digest:
                return False

            try:
                replay(trainer, known, until=base, start=step)
            except ModelError as error:
                message = f"the journal before the last checkpoint cannot be replayed: {error}"
                raise ReplayFailed(message) from error

        assert journal.header is not None
        if trainer.full_digest() != journal.header.base_digest:
            message = f"the journal before the last checkpoint does not lead to its model of step {base}"
            raise ReplayFailed(message)

        self.report(f"the checkpoint of step {base} is missing or damaged; its model was restored from the one of step {step}")
        return True

    def _settled(self, journal: Journal, trainer: Trainer, state: CoordinatorState, recovered: Recovered, *, at: int) -> int:
        """Apply the steps that the state accepted after step `at`, the last one in the journal now."""
        if recovered.header.generation != state.generation:
            return at

        for settled in settled_rounds(state, journal.pending, after=at):
            decision = settled.decision
            if decision.step > masters_due(state):
                break
            payloads = [journal.payload(payload_hash) for _, payload_hash in settled.results]
            rate = trainer.rate_of(decision.step)
            try:
                trainer.apply(decision.step, payloads, own_accepted=False, learning_rate=rate)
            except ModelError as error:
                message = f"the results of step {decision.step} in the journal cannot be applied: {error}"
                raise ReplayFailed(message) from error
            journal.add_applied(
                AppliedRound(
                    epoch=decision.epoch,
                    height=decision.height,
                    step=decision.step,
                    learning_rate=rate,
                    results=settled.results,
                    statements=decision.statements,
                    history=decision.history,
                )
            )
            at = decision.step
        self._written(journal, journal.sync)
        return at
