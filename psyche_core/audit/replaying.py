"""Applies the accepted results of journals step by step, and compares what comes out with what others say. No gradients.

One round's payloads are in memory at a time. The first difference ends it: after it nothing could be said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from psyche_core.audit.finding import opened
from psyche_core.audit.planning import Anchor, Disagreement, Plan, Stretch
from psyche_core.audit.report import Difference
from psyche_core.audit.rounds import RoundChecker
from psyche_core.errors import InputError, ModelError, PayloadRejected, WireError
from psyche_core.training.checkpoints.journal.file import JournalFile
from psyche_core.training.checkpoints.journal_records import NO_DIGEST, AppliedRound, StoredResult
from psyche_core.types import Decision


class Auditable(Protocol):
    """What an audit needs from a trainer."""

    @property
    def max_payload_bytes(self) -> int:
        """Upper bound for the size of valid payloads."""

    def check(self, payload: bytes) -> None:
        """Raise PayloadRejected for a payload that does not fit the model."""

    def apply(self, step: int, payloads: Sequence[bytes], *, own_accepted: bool, learning_rate: float | None = None) -> None:
        """Apply a step's accepted payloads to the masters."""

    def full_digest(self) -> bytes:
        """Digest of all masters, 32 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """What others say, by step.

    anchors: digests of the masters. decisions: what decided the step, with its source for people. disagreements: other rounds
    that another journal has.
    """

    anchors: Mapping[int, Sequence[Anchor]] = field(default_factory=dict)
    decisions: Mapping[int, Sequence[tuple[Decision, str]]] = field(default_factory=dict)
    disagreements: Mapping[int, Disagreement] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a replay is: steps applied, of how many, and the results in them."""

    steps: int
    total: int
    results: int


@dataclass(slots=True, kw_only=True)
class Replayed:
    """What a replay came to, see AuditReport. last: the last round applied. next_sample: one after the last sample trained."""

    last_step: int
    digest: bytes = b""
    results: int = 0
    members: set[bytes] = field(default_factory=set)
    compared: int = 0
    payload_bytes: int = 0
    seconds: float = 0.0
    difference: Difference | None = None
    last: AppliedRound | None = None
    next_sample: int = 0


class _DifferenceFound(Exception):
    """Ends a replay."""

    def __init__(self, step: int, what: str, source: str) -> None:
        super().__init__(what)
        self.difference = Difference(step, what, source)


class Replay:
    """Applies the rounds of a plan to a trainer whose masters are those of step `plan.start`. Used once.

    start: what these masters must be, beside the anchors of that step; None if nobody says. progress: called after each step.
    """

    def __init__(
        self,
        trainer: Auditable,
        plan: Plan,
        checker: RoundChecker,
        *,
        expected: Expectations,
        start: Anchor | None = None,
        progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._trainer = trainer
        self._plan = plan
        self._checker = checker
        self._expected = expected
        self._start = start
        self._progress = progress
        self._done = Replayed(last_step=plan.start)

    def run(self) -> Replayed:
        """Do it. Raises InputError for a file that cannot be read any more. After a difference the masters are of no step."""
        began = perf_counter()
        done = self._done
        try:
            if self._start is not None:
                self._compare_digest(self._plan.start, [self._start])
            self._compare_digest(self._plan.start, self._expected.anchors.get(self._plan.start, ()))
            for stretch in self._plan.stretches:
                with opened(stretch.segment) as file:
                    self._play_stretch(file, stretch)
            done.digest = self._trainer.full_digest()
        except _DifferenceFound as found:
            done.difference = found.difference
        done.seconds = perf_counter() - began
        return done

    def _play_stretch(self, file: JournalFile, stretch: Stretch) -> None:
        results: dict[bytes, StoredResult] = {}  # of rounds that are not applied yet, by commitment
        at = stretch.first_step
        try:
            for record in file.records():
                if isinstance(record, StoredResult):
                    if record.step >= at:
                        results.setdefault(record.commitment, record)
                elif record.step == at:
                    self._play(record, results, file=file, source=str(stretch.segment.path))
                    if at == stretch.last_step:
                        return
                    at += 1
                    results = {key: each for key, each in results.items() if each.step >= at}
        except (OSError, WireError) as error:
            message = f"{stretch.segment.path} cannot be read any more: {error}"
            raise InputError(message) from error

    def _play(self, played: AppliedRound, results: Mapping[bytes, StoredResult], *, file: JournalFile, source: str) -> None:
        """Check and apply one round, and compare what is known about it."""
        done, step = self._done, played.step
        disagreement = self._expected.disagreements.get(step)
        if disagreement is not None:
            what = (
                f"another journal has another round for step {step}: {disagreement.what}; one of the two is false, or of a "
                "history that the run has left: audit them apart"
            )
            raise _DifferenceFound(step, what, f"{disagreement.ours.path} and {disagreement.theirs.path}")

        wrong = self._checker.difference(played, results)
        if wrong:
            raise _DifferenceFound(step, wrong, source)

        payloads = [self._payload(file, payload_hash, step=step, source=source) for payload_hash in played.payload_hashes]
        try:
            self._trainer.apply(step, payloads, own_accepted=False, learning_rate=played.learning_rate)
        except (PayloadRejected, ModelError) as error:
            what = f"its accepted results cannot be applied: {error}"
            raise _DifferenceFound(step, what, source) from error

        done.last_step, done.last = step, played
        done.results += len(payloads)
        done.payload_bytes += sum(map(len, payloads))
        for commitment, _ in played.results:
            stored = results[commitment]
            done.members.add(stored.signer)
            done.next_sample = max(done.next_sample, *(batch.last + 1 for batch in stored.share), 0)
        self._compare_decisions(played)
        self._compare_digest(step, self._expected.anchors.get(step, ()))
        self._progress(Progress(steps=step - self._plan.start, total=self._plan.until - self._plan.start, results=done.results))

    def _payload(self, file: JournalFile, payload_hash: bytes, *, step: int, source: str) -> bytes:
        """A payload that fits the model; its SHA-256 was compared while it was read."""
        size, limit = file.payload_size(payload_hash), self._trainer.max_payload_bytes
        name = f"the accepted payload {payload_hash.hex()[:16]}…"
        if size > limit:
            raise _DifferenceFound(step, f"{name} has {size:,} bytes, and a result of this model at most {limit:,}", source)

        payload = file.payload(payload_hash)
        try:
            self._trainer.check(payload)
        except PayloadRejected as error:
            raise _DifferenceFound(step, f"{name} does not fit the model: {error}", source) from error

        return payload

    def _compare_decisions(self, played: AppliedRound) -> None:
        for decision, source in self._expected.decisions.get(played.step, ()):
            ours = (played.epoch, played.height)
            if (decision.epoch, decision.height) != ours:
                what = f"it is round {played.height} of epoch {played.epoch} in the journal, and otherwise "
                what += f"round {decision.height} of epoch {decision.epoch}"
                raise _DifferenceFound(played.step, what, source)
            if NO_DIGEST in (decision.statements, played.statements):
                continue
            if decision.statements != played.statements:
                what = "the statements of witnesses that decided it are others than those in the journal"
                raise _DifferenceFound(played.step, what, source)
            self._done.compared += 1

    def _compare_digest(self, step: int, anchors: Sequence[Anchor]) -> None:
        if not anchors:
            return

        digest = self._trainer.full_digest()
        for anchor in anchors:
            if anchor.digest != digest:
                what = (
                    f"the model to begin with, of step {step}, is {digest.hex()[:16]}…"
                    if step == self._plan.start
                    else f"the recomputed model after step {step} is {digest.hex()[:16]}…"
                )
                what = f"{what}, and should be {anchor.digest.hex()[:16]}…"
                if step == self._plan.start and self._start is None:
                    what += "; it follows from the run file's run_id and model: is this the run's own file and base model?"
                raise _DifferenceFound(step, what, anchor.source)
            self._done.compared += 1
