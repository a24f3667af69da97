"""Trainers of a small model whose shares can be checked: honest ones and cheats."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from psyche_core.builtin.dummy_data import DummyData
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.replay import AppliedStep
from psyche_core.testing.toy_model import ToyModel, toy_samples
from psyche_core.training.trainer import Trained, Trainer
from psyche_core.types import BatchId
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.settings import DistroSettings

SHAPES = {"a": (64, 48), "b": (48, 64), "norm": (48,)}


class Numbered(DummyData):
    """Each sample has tokens of its own, so that no two shares have one gradient."""

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        zeros = await super().read(batches, timeout=timeout)
        numbers = [number for batch in batches for number in range(batch.first, batch.last + 1)]
        tokens = b"".join(random.Random(number).randbytes(2 * self.sequence_length) for number in numbers)
        return Samples(tokens, zeros.count, self.sequence_length, 2)


class Member(Trainer):
    """A trainer of the toy model.

    compiled: whether numba may be used. memory: whether gradients are divided by their root mean squares. lookahead: by delta or
    payload. rate: of each step.
    """

    def __init__(
        self,
        *,
        compiled: bool = True,
        memory: bool = False,
        lookahead: Literal["delta", "payload"] = "delta",
        rate: Callable[[int], float] = lambda _: 0.01,
    ) -> None:
        model = ToyModel(SHAPES)
        settings = DistroSettings(
            compression_decay=0.99,
            compression_topk=6,
            compression_chunk=8,
            quantize_1bit=True,
            clip_grad_norm=1.0,
            weight_decay=0.1,
            gradient_beta2=0.9 if memory else None,
            lookahead=lookahead,
        )
        optimizer = DistroOptimizer(settings, model, compiled=compiled)
        super().__init__(model=model, optimizer=optimizer, learning_rate=rate, micro_batch_size=4, checked=True)


class TrainsOnOtherData(Member):
    """Its gradient is that of other samples."""

    def train(self, step: int, samples: Samples) -> Trained:
        return super().train(step, toy_samples(step, count=samples.count))


class SendsOldResults(Member):
    """It trains, and sends what it made of its first share again. Others refuse that before any check."""

    first: bytes = b""

    def train(self, step: int, samples: Samples) -> Trained:
        done = super().train(step, samples)
        self.first = self.first or done.payload
        return replace(done, payload=self.first)


class RecomputesNothing(Member):
    """A verifier that makes gradients up."""

    def recompute(
        self,
        step: int,
        samples: Samples,
        *,
        signs: Sequence[Any] | None,
        undone: Sequence[AppliedStep],
        ahead: bytes | None = None,
    ) -> list[Any]:
        honest = super().recompute(step, samples, signs=signs, undone=undone, ahead=ahead)
        return [-part for part in honest]
