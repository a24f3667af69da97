"""Apply a journal's rounds again, to restore the masters of its last round.

Every round is applied with its original learning rate, even if the schedule has changed. A newly built trainer has no results of
its own that are not settled, so no result counts as our own: the masters depend only on payloads and rates. Replay starts only
from the journal's base masters. The caller compares the result with the digest that the run's members signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from psyche_core.errors import ModelError, PayloadRejected
from psyche_core.training.checkpoints.journal.contents import Recovered


class Replayable(Protocol):
    """The methods of a trainer that replay needs."""

    def apply(self, step: int, payloads: Sequence[bytes], *, own_accepted: bool, learning_rate: float | None = None) -> None:
        """Apply a step's accepted payloads to the masters."""

    def full_digest(self) -> bytes:
        """Return the digest of all masters, 32 bytes."""


def replay(trainer: Replayable, recovered: Recovered, *, until: int, start: int | None = None) -> int:
    """Apply the recorded rounds up to step `until`, or as far as the journal goes. Returns the last step in the masters then.

    start: the last step in the trainer's masters now; None for the journal's base. It is later than the base if a checkpoint was
    saved but the journal was not restarted with it. Raises ModelError for masters that are not those of the base, for steps that
    are not in the journal, and for payloads that cannot be read or do not fit the model; the message names the step. If a round
    was already applied when this raises, the masters do not match any step.
    """
    base = recovered.header.base_step
    at = base if start is None else start
    if not base <= at <= recovered.last_step:
        message = f"the journal covers steps {base} to {recovered.last_step}, but the model is that of step {at}"
        raise ModelError(message)

    if at == base and trainer.full_digest() != recovered.header.base_digest:
        message = f"the journal begins with another model of step {base} than this one"
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
