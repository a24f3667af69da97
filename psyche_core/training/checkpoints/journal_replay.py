"""Apply a journal's rounds again, to restore the masters of its last round.

Every round gets the learning rate it had, whatever the schedule says now. A newly built trainer has no results of its own that
wait to be settled, so no result counts as our own: masters depend on payloads and rates alone. Replay starts only from the
journal's own base masters. The caller compares the result with what the run's members signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from psyche_core.errors import ModelError, PayloadRejected
from psyche_core.training.checkpoints.journal import Recovered


class Replayable(Protocol):
    """What is needed of a trainer."""

    def apply(self, step: int, payloads: Sequence[bytes], *, own_accepted: bool, learning_rate: float | None = None) -> None:
        """Apply a step's accepted payloads to the masters."""

    def full_digest(self) -> bytes:
        """SHA-256 over all masters."""


def replay(trainer: Replayable, recovered: Recovered, *, until: int, start: int | None = None) -> int:
    """Apply the recorded rounds up to step `until`, or as far as there are any; the last step in the masters then.

    start: the last step in the trainer's masters now; None: the journal's base. It is later than the base where a checkpoint was
    saved and the journal not begun anew with it. Raises ModelError, after which the masters fit no step unless none was applied:
    for masters that are not the base's, steps the journal does not have, and payloads that cannot be had or do not fit, saying at
    which step.
    """
    base = recovered.header.base_step
    at = base if start is None else start
    if not base <= at <= recovered.last_step:
        message = f"the journal goes from step {base} to step {recovered.last_step}, and the model is of step {at}"
        raise ModelError(message)

    if at == base and trainer.full_digest() != recovered.header.base_digest:
        message = f"the journal does not begin with this model, but with another one of step {base}"
        raise ModelError(message)

    for applied in recovered.rounds[at - base : max(until - base, 0)]:
        payloads = [recovered.payload(each) for each in applied.payload_hashes]
        try:
            trainer.apply(applied.step, payloads, own_accepted=False, learning_rate=applied.learning_rate)
        except PayloadRejected as error:
            message = f"a result of step {applied.step} in the journal does not fit the model: {error}"
            raise ModelError(message) from error

        at = applied.step
    return at
