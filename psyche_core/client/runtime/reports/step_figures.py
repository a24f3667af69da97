"""Computes the figures of a step that people watch in addition to its loss: rates, the whole run's speed, waiting time. Pure.

The caller passes the time. Nothing in the protocol depends on these figures.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

from psyche_core.config.run_config import CoordinatorConfig, ModelConfig
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry.events import RunDescribed, StepFigures
from psyche_core.training.checkpoints.sources import model_name
from psyche_core.types import total_samples

NEWEST_STEPS = 16
"""Steps over which speed and efficiency are means."""

_LARGEST_EXPONENT = 709.0
"""e to this power is about the largest float."""


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """The trainer's figures of a step. loss: nats per token. seconds: of training. vocab_size: of the model.

    compress_seconds: the part of those seconds that making the result from gradients took.
    """

    step: int
    height: int
    loss: float
    seconds: float
    learning_rate: float
    gradient_norm: float
    vocab_size: int
    compress_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    """A trained step. ended: when its training ended. seconds: of training. tokens: of all members."""

    ended: float
    seconds: float
    tokens: int


class StepFigureMaker:
    """Makes the figures of a step. Remembers the newest steps of this epoch."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=NEWEST_STEPS + 1)
        self._epoch: int | None = None
        self._applying = 0.0

    def applied(self, seconds: float) -> None:
        """Note that results were applied, and how many seconds that took."""
        self._applying += seconds

    def trained(self, done: TrainedStep, state: CoordinatorState, *, now: float) -> StepFigures:
        """Return the figures of a step whose share we trained. state: the newest one. now: seconds of a steady clock."""
        if state.progress.epoch != self._epoch:
            self._epoch = state.progress.epoch
            self._steps.clear()
        length = state.model.LLM.max_seq_len
        played = state.round_at(done.height)
        same = played is not None and played.step == done.step
        batch = total_samples(played.batches) * length if played is not None and same else None
        wait = None
        if self._steps:
            wait = max(0.0, now - self._steps[-1].ended - done.seconds - self._applying)
        self._applying = 0.0
        self._steps.append(_Step(now, done.seconds, batch or 0))
        speed = efficiency = None
        if len(self._steps) > 1 and now > self._steps[0].ended:
            passed = now - self._steps[0].ended
            newer = list(self._steps)[1:]
            efficiency = min(1.0, sum(step.seconds for step in newer) / passed)
            speed = sum(step.tokens for step in newer) / passed
        return replace(
            figures_of(done, batch_tokens=batch, total_tokens=state.progress.data_index * length),
            tokens_per_second=speed,
            efficiency=efficiency,
            wait_seconds=wait,
        )


def figures_of(done: TrainedStep, *, batch_tokens: int | None, total_tokens: int) -> StepFigures:
    """Return the figures that can be computed from one step alone."""
    return StepFigures(
        step=done.step,
        learning_rate=done.learning_rate,
        perplexity=math.exp(done.loss) if done.loss < _LARGEST_EXPONENT else math.inf,
        confidence=1.0 - done.loss / math.log(done.vocab_size) if done.vocab_size > 1 else 1.0,
        gradient_norm=done.gradient_norm,
        batch_tokens=batch_tokens,
        total_tokens=total_tokens,
        compress_seconds=done.compress_seconds,
    )


def described(run_id: str, config: CoordinatorConfig, model: ModelConfig) -> RunDescribed:
    """Return the event that describes a run's configuration."""
    llm = model.LLM
    return RunDescribed(
        run_id=run_id,
        model=model_name(llm),
        architecture=llm.architecture,
        optimizer=llm.optimizer.name,
        total_steps=config.total_steps,
        sequence_length=llm.max_seq_len,
        batch_size_start=config.global_batch_size_start,
        batch_size_end=config.global_batch_size_end,
        batch_size_warmup_tokens=config.global_batch_size_warmup_tokens,
    )
