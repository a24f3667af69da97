"""Runs the measurement of replays from a run file: builds models and optimizers, reads data, and trains with each seed.

Data that only a run's server provides is rejected, and so is an optimizer whose training cannot be replayed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio.from_thread
import anyio.to_thread

from psyche_core.client.runtime.sample_checks import check_token_ids, read_samples
from psyche_core.client.setup.data_source import data_source, held_out_place
from psyche_core.client.setup.train_local import rounds
from psyche_core.config.run_config import Choice, LLMConfig, RunFile
from psyche_core.coordinator.learning_rate import learning_rate
from psyche_core.errors import UserError
from psyche_core.experiments.replayed_training import Arithmetic, MeasuredShare, Plan, ReplayedTraining, measured_shares
from psyche_core.interfaces.data import Samples
from psyche_core.plugins import PluginRegistry
from psyche_core.plugins.model_stores import StoreOpener
from psyche_core.training.build import Compute, build_model, build_optimizer
from psyche_core.training.checkpoints import sources
from psyche_core.verification.replay import Rule
from psyche_core.wire.signing import SecretKey

START, PEAK = "start", "peak"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayExperiment:
    """The settings of a measurement.

    run: model, optimizer, schedule and batch sizes. data: token file or folder. token_size: bytes per token. steps: of each
    training. members: number of members that share a batch. shares: number measured in each phase of each training. budget:
    seconds for everything. compared: kinds of arithmetic; the first is the members' own. base: folder that relative paths of the
    run file start from. cache: folder for downloads.
    """

    run: RunFile
    data: Path
    steps: int
    members: int
    shares: int
    budget: float
    compared: Sequence[Arithmetic]
    base: Path
    cache: Path
    token_size: str = "TwoBytes"  # noqa: S105  # a token of text, not a secret
    rule: Rule = Rule()  # noqa: RUF009  # frozen


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step of one training. found: its measured shares. seconds: time since the beginning of all trainings."""

    seed: int
    step: int
    found: tuple[MeasuredShare, ...]
    seconds: float


def shortened_schedule(schedule: Choice, steps: int) -> tuple[Choice, int]:
    """Return the schedule with a warm-up of at most half of the steps, and its number of warm-up steps."""
    table = dict(schedule.settings or {})
    table["warmup_steps"] = min(table["warmup_steps"], steps // 2)
    return Choice(schedule.name, table), table["warmup_steps"]


def phases_of(steps: int, warmup: int) -> dict[int, str]:
    """Return the phase of each step, from 1: `start` while the rate rises, at least the first two steps; `peak` afterwards."""
    return {step: START if step <= max(2, warmup) else PEAK for step in range(1, steps + 1)}


async def measured_steps(
    experiment: ReplayExperiment, seeds: Sequence[int], registry: PluginRegistry, *, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[MeasuredStep]:
    """Train with each seed and yield every step. When the budget is used up, the present training ends after its step.

    Half of a seed's time is for its first phase. Raises UserError, DataError, ModelError and NonFiniteError.
    """
    length = experiment.run.model.LLM.max_seq_len
    key, cache = SecretKey.generate(), experiment.cache / "data"
    folder = await anyio.to_thread.run_sync(
        lambda: sources.find(
            experiment.run.model.LLM.checkpoint,
            base=experiment.base,
            cache=experiment.cache,
            open_store=StoreOpener(registry),
        )
    )
    begun = clock()
    for place, seed in enumerate(seeds):
        own_begin = clock() - begun
        own_end = own_begin + (experiment.budget - own_begin) / (len(seeds) - place)
        half = (own_begin + own_end) / 2

        def may_measure(phase: str, *, half: float = half, own_end: float = own_end) -> bool:
            return clock() - begun < (half if phase == START else own_end)

        where = held_out_place(experiment.data, experiment.token_size)
        shuffled = Choice(where.name, {**(where.settings or {}), "shuffle": {"Seeded": [seed % 256] * 32}})
        source = await data_source(registry, shuffled, sequence_length=length, key=key, base=experiment.base, cache=cache)
        called = registry.label("data", where.name)
        async with source as data:
            shares = [
                [await read_samples(data, [batch], sequence_length=length, name=called) for batch in batches]
                for _, batches in rounds(experiment.run, experiment.steps, experiment.members)
            ]
        training = await anyio.to_thread.run_sync(_training, experiment, registry, folder, shares, seed, called)
        steps = training.run(may_measure=may_measure)
        while (done := await anyio.to_thread.run_sync(next, steps, None)) is not None:
            step, found = done
            yield MeasuredStep(seed, step, tuple(found), clock() - begun)
            if clock() - begun >= own_end:
                break


def _training(
    experiment: ReplayExperiment,
    registry: PluginRegistry,
    folder: Path,
    shares: Sequence[Sequence[Samples]],
    seed: int,
    called: str,
) -> ReplayedTraining:
    """called: the name of the data plugin in messages."""
    llm = experiment.run.model.LLM
    schedule, warmup = shortened_schedule(llm.lr_schedule, experiment.steps)
    places = dict.fromkeys((one.device, one.dtype) for one in experiment.compared)
    models = {
        (device, dtype): build_model(
            registry.load, llm, Compute(device=device, dtype=dtype), run_id=f"verification {seed}", source=folder
        )
        for device, dtype in places
    }
    first = next(iter(models.values()))
    for samples in itertools.chain.from_iterable(shares):
        check_token_ids(samples, first.vocab_size, name=called)
    optimizers = [build_optimizer(registry.load, llm.optimizer, first) for _ in range(experiment.members)]
    check_replayable(llm, optimizers[0].replay is not None, optimizers[0].inner_steps)
    phases = phases_of(experiment.steps, warmup)
    plan = Plan(
        seed=seed,
        rounds=shares,
        rate=lambda step: learning_rate(schedule, step),
        compared=experiment.compared,
        measured=measured_shares(phases, experiment.members, each=experiment.shares),
        rule=experiment.rule,
    )
    return ReplayedTraining(plan, models, optimizers)


def check_replayable(llm: LLMConfig, replayable: bool, inner_steps: int) -> None:
    """Raise UserError for an optimizer whose training cannot be replayed."""
    if not replayable or inner_steps > 1:
        message = (
            f"the training of optimizer {llm.optimizer.name} cannot be replayed, so there is nothing to measure; Distro's can"
        )
        raise UserError(message)
