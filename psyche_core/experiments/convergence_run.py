"""Runs a convergence experiment from a run file: builds models, reads data, trains every recipe with every seed.

Outcomes are yielded one by one, so that a caller that runs for hours can save them. A seed determines the first weights and the
order of the data. Data that only a run's server provides is rejected.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from psyche_core.client.runtime.sample_checks import check_token_ids, read_samples
from psyche_core.client.setup.data_source import data_source, first_samples, held_out_place
from psyche_core.client.setup.train_local import rounds
from psyche_core.config.run_config import Choice, RunFile
from psyche_core.experiments.convergence import (
    PLAIN_ADAMW,
    Outcome,
    Recipe,
    Task,
    scaled_schedule,
    train_members,
    train_plain_adamw,
)
from psyche_core.interfaces import DataProvider
from psyche_core.interfaces.data import Samples
from psyche_core.plugins import PluginRegistry
from psyche_core.plugins.model_stores import StoreOpener
from psyche_core.training.build import Compute, build_model, build_trainer
from psyche_core.training.checkpoints import sources
from psyche_core.wire.signing import SecretKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The settings of an experiment.

    run: model, schedule and batch sizes. data, validation_data: token files or folders of them. token_size: bytes per token, in
    both. members: number of members that share a batch. every: steps between measurements of the loss. base: folder that relative
    paths of the run file start from. cache: folder for downloads.
    """

    run: RunFile
    data: Path
    validation_data: Path
    steps: int
    members: int
    every: int
    base: Path
    cache: Path
    token_size: str = "TwoBytes"  # noqa: S105  # a token of text, not a secret
    validation_sequences: int = 64
    micro_batch_size: int = 8
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class Prepared:
    """An experiment whose files have been read or found.

    validation: samples on which losses are measured. folder: where the model's description, or its weights, are.
    """

    experiment: Experiment
    validation: Samples
    folder: Path


async def prepared(experiment: Experiment, registry: PluginRegistry) -> Prepared:
    """Read the validation samples and find the model. Raises UserError and DataError."""
    length = experiment.run.model.LLM.max_seq_len
    async with await _provider(experiment, experiment.validation_data, registry) as held_out:
        name = _called(experiment, registry)
        validation = await first_samples(held_out, experiment.validation_sequences, sequence_length=length, name=name)
    folder = await anyio.to_thread.run_sync(
        lambda: sources.find(
            experiment.run.model.LLM.checkpoint,
            base=experiment.base,
            cache=experiment.cache,
            open_store=StoreOpener(registry),
        )
    )
    return Prepared(experiment, validation, folder)


async def read_task(ready: Prepared, seed: int, registry: PluginRegistry, *, steps: int) -> Task:
    """Read the samples of a training of `steps` steps, in the order that the seed determines. Raises UserError and DataError."""
    experiment = ready.experiment
    length = experiment.run.model.LLM.max_seq_len
    async with await _provider(experiment, experiment.data, registry, shuffled_by=seed) as data:
        shares = [
            [await read_samples(data, [batch], sequence_length=length, name=_called(experiment, registry)) for batch in batches]
            for _, batches in rounds(experiment.run, steps, experiment.members)
        ]
    return Task(shares, ready.validation, experiment.every, experiment.micro_batch_size)


async def outcomes(
    experiment: Experiment,
    recipes: Sequence[Recipe],
    seeds: Sequence[int],
    registry: PluginRegistry,
    *,
    known: Collection[tuple[str, int]] = (),
) -> AsyncIterator[Outcome]:
    """Train all recipes but the known ones (title, seed), seed by seed.

    Raises UserError, DataError, ModelError and NonFiniteError.
    """
    ready = await prepared(experiment, registry)
    for seed in seeds:
        task = await read_task(ready, seed, registry, steps=experiment.steps)
        for recipe in recipes:
            if (recipe.title, seed) not in known:
                yield await anyio.to_thread.run_sync(_train, ready, task, recipe, seed, registry)


async def _provider(
    experiment: Experiment, files: Path, registry: PluginRegistry, *, shuffled_by: int | None = None
) -> AbstractAsyncContextManager[DataProvider]:
    """Return the provider of local token files, in their own order or shuffled by a seed."""
    place = held_out_place(files, experiment.token_size)
    if shuffled_by is not None:
        place = Choice(place.name, {**(place.settings or {}), "shuffle": {"Seeded": [shuffled_by % 256] * 32}})
    length = experiment.run.model.LLM.max_seq_len
    key, cache = SecretKey.generate(), experiment.cache / "data"
    return await data_source(registry, place, sequence_length=length, key=key, base=experiment.base, cache=cache)


def _called(experiment: Experiment, registry: PluginRegistry) -> str:
    """Return the name of the data plugin in messages."""
    return registry.label("data", held_out_place(experiment.data, experiment.token_size).name)


def _check_tokens(experiment: Experiment, task: Task, vocab_size: int, registry: PluginRegistry) -> None:
    """Check that the model knows all token ids of a task. Raises ProviderFailed."""
    for samples in (task.held_out, *itertools.chain.from_iterable(task.rounds)):
        check_token_ids(samples, vocab_size, name=_called(experiment, registry))


def _train(ready: Prepared, task: Task, recipe: Recipe, seed: int, registry: PluginRegistry) -> Outcome:
    if recipe.optimizer != PLAIN_ADAMW:
        return train_plugin(ready, task, recipe, seed, registry)

    experiment = ready.experiment
    llm = experiment.run.model.LLM
    schedule = scaled_schedule(llm.lr_schedule, recipe.rate, steps=len(task.rounds))
    model = build_model(registry.load, llm, _compute(experiment), run_id=f"convergence {seed}", source=ready.folder)
    _check_tokens(experiment, task, model.vocab_size, registry)
    return train_plain_adamw(task, model, recipe, schedule=schedule, seed=seed)


def train_plugin(ready: Prepared, task: Task, recipe: Recipe, seed: int, registry: PluginRegistry) -> Outcome:
    """Train with an optimizer plugin: several members with the delay of a run.

    The schedule is scaled to the task's length. Raises UserError, DataError, ModelError and NonFiniteError.
    """
    experiment = ready.experiment
    llm = experiment.run.model.LLM
    schedule = scaled_schedule(llm.lr_schedule, recipe.rate, steps=len(task.rounds))
    chosen = Choice(recipe.optimizer, dict(recipe.settings))
    config = experiment.run.model.model_copy(
        update={"LLM": llm.model_copy(update={"optimizer": chosen, "lr_schedule": schedule})}
    )
    trainers = [
        build_trainer(
            registry_load=registry.load,
            model_config=config,
            run_id=f"convergence {seed}",
            source=ready.folder,
            compute=_compute(experiment),
        )
        for _ in range(experiment.members)
    ]
    _check_tokens(experiment, task, trainers[0].vocab_size, registry)
    return train_members(task, trainers, recipe, seed=seed)


def _compute(experiment: Experiment) -> Compute:
    return Compute(device=experiment.device, micro_batch_size=experiment.micro_batch_size)
