"""What the records of a round must be, before its payloads are looked at. Pure.

Each accepted result must be in the journal, belong to this round, have the commitment that follows from run, round, share,
trainer and payload (protocol F7), and carry its trainer's signature of it. What is not in a journal is not checked here: which
witnesses accepted the result (of their statements there is only a digest), and whether the coordinator assigned this share to
this member.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from psyche_core.training.checkpoints.journal_records import AppliedRound, StoredResult
from psyche_core.wire.messages import commitment_hash, is_commitment_of, result_hash

RATE_TOLERANCE: Final = 1e-12
"""Relative difference of two learning rates that counts as none: mathematical libraries differ in the last bit of a cosine."""

Rates = Callable[[int, int], tuple[float, ...]]
"""(step, first step of its epoch) -> the learning rates with which the step's results may be applied."""


class RoundChecker:
    """Checks the rounds of one run, in order of their steps.

    instance: of the run (32 bytes). rates: what the schedule gives. run_file: its place, None if that is unknown.
    """

    def __init__(self, instance: bytes, rates: Rates, *, run_file: Path | None = None) -> None:
        self._instance = instance
        self._rates = rates
        self._file = "the run file" if run_file is None else f"the run file {run_file}"
        self._before: AppliedRound | None = None
        self._members: dict[int, tuple[bytes, bytes]] = {}  # by slot, of the epoch that is played

    def difference(self, played: AppliedRound, results: Mapping[bytes, StoredResult]) -> str:
        """Return the first thing that is wrong with a round, as the end of a sentence; empty if nothing is.

        results: what the journal has before the round, by commitment. Call it once for each round.
        """
        wrong = self._wrong_position(played)
        if wrong:
            return wrong

        found: list[StoredResult] = []
        for commitment, payload_hash in played.results:
            stored = results.get(commitment)
            if stored is None:
                return f"the accepted result {commitment.hex()[:16]}… is not in the journal"
            wrong = self._wrong_result(played, stored, payload_hash)
            if wrong:
                return f"the result of slot {stored.slot}, signed by {stored.trainer.hex()[:8]}, {wrong}"
            found.append(stored)
        return _wrong_together(found) or self._wrong_rate(played)

    def _wrong_position(self, played: AppliedRound) -> str:
        """A round follows the one before it in its epoch, or begins an epoch."""
        before, self._before = self._before, played
        if played.height > played.step - 1:
            return f"it is said to be round {played.height} of its epoch, before which there were {played.step - 1} steps"
        if before is not None and (played.epoch, played.height) != (before.epoch, before.height + 1):
            if played.height != 0:
                return f"round {played.height} of epoch {played.epoch} follows round {before.height} of epoch {before.epoch}"
            self._members.clear()
        return ""

    def _wrong_result(self, played: AppliedRound, stored: StoredResult, payload_hash: bytes) -> str:
        if (stored.epoch, stored.height, stored.step) != (played.epoch, played.height, played.step):
            return f"is one of epoch {stored.epoch}, round {stored.height}, step {stored.step}"
        if stored.payload_hash != payload_hash:
            return "was announced with another payload than the one that was applied"

        commitment = commitment_hash(
            self._instance,
            epoch=stored.epoch,
            step=stored.step,
            seed=stored.seed,
            share=stored.share,
            trainer=stored.signer,
            payload_hash=result_hash(stored.payload_hash, stored.roots),
        )
        if commitment != stored.commitment:
            return "has a commitment that does not follow from its run, round, share, trainer and payload"
        if not is_commitment_of(stored.trainer, stored.commitment, stored.signature, run=self._instance):
            return "has a commitment whose signature is not valid"
        if self._members.setdefault(stored.slot, (stored.trainer, stored.signer)) != (stored.trainer, stored.signer):
            return "is in a slot that another member had in an earlier round of the same epoch"
        return ""

    def _wrong_rate(self, played: AppliedRound) -> str:
        allowed = self._rates(played.step, played.step - played.height)
        if any(math.isclose(played.learning_rate, rate, rel_tol=RATE_TOLERANCE) for rate in allowed):
            return ""
        expected = " or ".join(f"{rate!r}" for rate in allowed)
        return (
            f"its results were applied with the learning rate {played.learning_rate!r}, and the run's schedule gives {expected}; "
            f"or {self._file} is not the one the run had"
        )


def _wrong_together(results: list[StoredResult]) -> str:
    """In one round each slot has one result, and each sample is in one share."""
    slots = [each.slot for each in results]
    if len(set(slots)) != len(slots):
        twice = next(slot for slot in slots if slots.count(slot) > 1)
        return f"slot {twice} has more than one accepted result"

    taken = sorted((batch.first, batch.last, each.slot) for each in results for batch in each.share)
    for (_, last, one), (first, _, other) in itertools.pairwise(taken):
        if first <= last:
            return f"the results of slots {one} and {other} are both about sample {first}"
    return ""
