"""Runs the trainings of a convergence experiment: one after another, or several at once in separate processes.

A training of a small model is limited by one core, even on a GPU, and leaves most of the device idle. So several at once take
less time, until cores or the device's memory are used up. A process trains exactly what it would train alone: outcomes are the
same, except for rounding differences caused by the number of torch's threads.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import anyio
import torch
from pydantic import BaseModel, ConfigDict, Field

from psyche_core.config.sentences import validated
from psyche_core.errors import ConfigError, UserError
from psyche_core.experiments.convergence import PLAIN_ADAMW, Outcome, Recipe
from psyche_core.experiments.convergence_run import Experiment, outcomes
from psyche_core.experiments.convergence_worker import Job, decoded_outcome
from psyche_core.interfaces.rate_groups import RateGroups
from psyche_core.plugins import PluginRegistry
from psyche_core.plugins.settings import validate_settings


async def train_recipes(
    experiment: Experiment,
    recipes: Sequence[Recipe],
    seeds: Sequence[int],
    registry: PluginRegistry,
    *,
    finished: Callable[[Outcome], None],
    known: Collection[tuple[str, int]] = (),
    jobs: int = 1,
    torch_threads: int | None = None,
) -> None:
    """Train all recipes but the known ones (title, seed), and call `finished` with each outcome.

    jobs: number of trainings at once; with more than one, each is a process, which finds the plugins itself. torch_threads: of
    each process; None: torch's choice for one job, else an equal part of the cores. Raises UserError, DataError, ModelError and
    NonFiniteError; then the other trainings are ended.
    """
    if jobs == 1:
        if torch_threads is not None:
            torch.set_num_threads(torch_threads)
        async for outcome in outcomes(experiment, recipes, seeds, registry, known=known):
            finished(outcome)
        return

    threads = torch_threads or max(1, (os.cpu_count() or 1) // jobs)
    limiter = anyio.CapacityLimiter(jobs)

    async def train(recipe: Recipe, seed: int) -> None:
        async with limiter:
            finished(await _trained_alone(Job(experiment, recipe, seed, threads)))

    try:
        async with anyio.create_task_group() as tasks:
            for seed in seeds:
                for recipe in recipes:
                    if (recipe.title, seed) not in known:
                        tasks.start_soon(train, recipe, seed)
    except ExceptionGroup as group:
        raise group.exceptions[0] from group


async def _trained_alone(job: Job) -> Outcome:
    """Train in a separate process, which is ended when this is cancelled. Raises the same errors as the training."""
    command = [sys.executable, "-m", Job.__module__]
    process = await anyio.run_process(command, input=job.encode(), stderr=None, check=False)
    if process.returncode or not process.stdout:
        message = (
            f"the process that trained {job.recipe.title} with seed {job.seed} ended with status {process.returncode}; "
            "its output says why"
        )
        raise UserError(message)

    return decoded_outcome(process.stdout)


class _Entry(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    optimizer: str
    learning_rate: Annotated[float, Field(gt=0)]
    settings: dict[str, Any] = Field(default_factory=dict)


class _AdamWSettings(BaseModel):
    """See `Recipe`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    rates: RateGroups | None = None
    delay: int = Field(default=0, ge=0)
    look_ahead: bool = False


def load_recipes(path: Path, registry: PluginRegistry) -> list[Recipe]:
    """Read recipes from a TOML file: a list of tables `recipe` with `optimizer`, `learning_rate` and `settings`.

    `AdamW` is the plain optimizer, see `Recipe`; others are plugins, whose settings are checked. Raises ConfigError and
    PluginError.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"cannot read {path}: {error}"
        raise ConfigError(message) from error

    entries = table.get("recipe")
    if table.keys() != {"recipe"} or not isinstance(entries, list):
        message = f"{path}: expected a list of tables [[recipe]] and nothing else, got {', '.join(table) or 'nothing'}"
        raise ConfigError(message)

    found: dict[str, Recipe] = {}
    for number, given in enumerate(entries, start=1):
        where = f"{path}: recipe {number}"
        entry = _Entry.model_validate(validated(_Entry, given, where=where))
        recipe = Recipe(entry.optimizer, entry.learning_rate, entry.settings)
        if recipe.optimizer == PLAIN_ADAMW:
            validated(_AdamWSettings, recipe.settings, where=f"{where}: settings")
        else:
            validate_settings(registry.load("optimizer", recipe.optimizer), recipe.settings, where=f"{where}: settings")
        if recipe.title in found:
            message = f"{where}: a table would call it the same as an earlier recipe, {recipe.title!r}; leave one of them out"
            raise ConfigError(message)
        found[recipe.title] = recipe
    return list(found.values())
