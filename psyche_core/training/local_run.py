"""A run in one process, without coordinator and network: each member has its own trainer, with the delayed apply of a real run.

The results of step s are applied before step s + 2, as in a real run (protocol section 3), so the training behaviour is the same.
Every result is accepted. The caller provides data, rates and sizes from the run's configuration.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from psyche_core.interfaces.data import Samples
from psyche_core.training.trainer import APPLY_DELAY, Trainer
from psyche_core.training.update_statistics import UpdateStatistics


@dataclass(frozen=True, slots=True)
class LocalStep:
    """A step that was trained.

    loss: mean over all samples, in nats per token. tokens: of all members together. seconds: sum over all members, which train
    one after the other. compress_seconds: the part of those seconds in which results were made from gradients. payload_bytes:
    size of the largest result. learning_rate: of the schedule. gradient_norm: mean of the members' norms.
    """

    step: int
    loss: float
    tokens: int
    seconds: float
    payload_bytes: int
    learning_rate: float
    gradient_norm: float
    compress_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LocalApply:
    """A step whose results were applied. results: one of each member. seconds: sum over all members."""

    step: int
    results: int
    seconds: float


class LocalRun:
    """A local run. trainers: one for each member, with equal masters. Not thread-safe: call it from one worker thread.

    statistics: of the first trainer's optimizer, measured where steps are applied.
    """

    def __init__(self, trainers: Sequence[Trainer], *, statistics: UpdateStatistics | None = None) -> None:
        self._trainers = tuple(trainers)
        self._statistics = statistics
        self._waiting: dict[int, tuple[bytes, ...]] = {}
        self._applied = 0
        self._applies: list[LocalApply] = []

    def take_applies(self) -> tuple[LocalApply, ...]:
        """What was applied since this was called last."""
        taken = tuple(self._applies)
        self._applies.clear()
        return taken

    @property
    def applied(self) -> int:
        """The last step whose results are in the masters, 0 before the first."""
        return self._applied

    def train(self, step: int, shares: Sequence[Samples]) -> LocalStep:
        """Apply the results that are due, then train one step. step: from 1, in order. shares: the samples of each member.

        Raises ModelError and NonFiniteError.
        """
        self._apply(step - APPLY_DELAY)
        done = [trainer.train(step, share) for trainer, share in zip(self._trainers, shares, strict=True)]
        if self._statistics is not None:
            self._statistics.trained(step)
        self._waiting[step] = tuple(one.payload for one in done)
        samples = sum(share.count for share in shares)
        return LocalStep(
            step,
            sum(one.loss * share.count for one, share in zip(done, shares, strict=True)) / samples,
            sum(one.tokens for one in done),
            sum(one.seconds for one in done),
            max(len(one.payload) for one in done),
            done[0].learning_rate,
            sum(one.gradient_norm for one in done) / len(done),
            sum(one.compress_seconds for one in done),
        )

    def finish(self) -> None:
        """Apply all results that are not applied yet, as at an epoch's end. Training may continue afterwards."""
        for step in sorted(self._waiting):
            self._apply(step)

    def _apply(self, step: int) -> None:
        payloads = self._waiting.pop(step, None)
        if payloads is None:
            return

        began = time.perf_counter()
        first, *others = self._trainers
        with contextlib.nullcontext() if self._statistics is None else self._statistics.around(step):
            first.apply(step, payloads, own_accepted=True)
        for trainer in others:
            trainer.apply(step, payloads, own_accepted=True)
        self._applied = step
        self._applies.append(LocalApply(step, len(payloads), time.perf_counter() - began))
