"""Runs a search for optimizer settings: trains what the plan asks for, one trial after another.

`tuning` decides what is trained. Every finished trial is yielded at once, so that a caller that runs for hours can save it.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio.to_thread

from psyche_core.config.run_config import RunFile
from psyche_core.errors import ConfigError, NonFiniteError
from psyche_core.experiments.convergence import Outcome, Recipe, Task, scaled_schedule
from psyche_core.experiments.convergence_run import Experiment, Prepared, prepared, read_task, train_plugin
from psyche_core.experiments.tuning import RATE, Axis, Candidate, Plan, Trial, changed, due_trials
from psyche_core.plugins import PluginRegistry
from psyche_core.plugins.settings import validate_settings


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished trial.

    Attributes:
        losses: (applied steps, validation loss in nats per token); empty if the training diverged.
        bytes_per_step: mean size of one member's results, 0 if the training diverged.
        seconds: wall-clock time of the training.
    """

    trial: Trial
    losses: tuple[tuple[int, float], ...]
    bytes_per_step: float
    seconds: float

    @property
    def loss(self) -> float:
        """The last validation loss, infinite if the training diverged."""
        return self.losses[-1][1] if self.losses else math.inf

    def as_table(self) -> dict[str, Any]:
        """Return the trial as a table for JSON."""
        return {
            "rung": self.trial.rung,
            "candidate": self.trial.candidate,
            "seed": self.trial.seed,
            "validation_loss": round(self.loss, 4) if self.losses else None,
            "bytes_per_step": round(self.bytes_per_step),
            "seconds": round(self.seconds, 1),
            "losses": [[step, round(loss, 4)] for step, loss in self.losses],
        }

    @classmethod
    def of_table(cls, table: Mapping[str, Any]) -> Finished:
        """Read the table that `as_table` made."""
        trial = Trial(table["rung"], table["candidate"], table["seed"])
        return cls(trial, tuple((step, loss) for step, loss in table["losses"]), table["bytes_per_step"], table["seconds"])


def recipe_of(run: RunFile, candidate: Candidate) -> Recipe:
    """Return the run's optimizer with a candidate's values."""
    llm = run.model.LLM
    rate = candidate.values.get(RATE, (llm.lr_schedule.settings or {}).get("base_lr"))
    if rate is None:
        message = (
            f"[model.LLM.lr_schedule.{llm.lr_schedule.name}] has no base_lr, so there is no rate to vary; choose a schedule that "
            "has one"
        )
        raise ConfigError(message)
    return Recipe(llm.optimizer.name, float(rate), changed(llm.optimizer.settings or {}, candidate.values))


def check_candidates(run: RunFile, axes: Sequence[Axis], chosen: Sequence[Candidate], registry: PluginRegistry) -> None:
    """Validate the settings of every candidate, and every listed value, before anything is trained.

    Raises ConfigError and PluginError.
    """
    registration = registry.load("optimizer", run.model.LLM.optimizer.name)
    listed = [Candidate(1, {axis.name: choice}) for axis in axes for choice in axis.choices]
    for candidate in (*listed, *chosen):
        try:
            validate_settings(registration, recipe_of(run, candidate).settings, where=f"optimizer.{registration.name}")
        except ConfigError as error:
            message = f"--vary, with {candidate.title}: {error}" if candidate.number else str(error)
            raise ConfigError(message) from error


def tuned_tables(run: RunFile, candidate: Candidate, *, steps: int) -> dict[str, Any]:
    """Return the tables of a run file that a candidate changes, ready to be written as TOML. steps: of the run."""
    llm, recipe = run.model.LLM, recipe_of(run, candidate)
    schedule = scaled_schedule(llm.lr_schedule, recipe.rate, steps=steps)
    rates = {key: float(f"{value:.6g}") if key.endswith("_lr") else value for key, value in (schedule.settings or {}).items()}
    optimizer = {recipe.optimizer: dict(recipe.settings)}
    return {"model": {"LLM": {"lr_schedule": {schedule.name: rates}, "optimizer": optimizer}}}


async def finished_trials(
    experiment: Experiment,
    chosen: Sequence[Candidate],
    plan: Plan,
    registry: PluginRegistry,
    *,
    known: Mapping[Trial, float],
) -> AsyncGenerator[Finished]:
    """Train the trials of the plan that are not known, rung by rung, until no trial is due.

    chosen: candidates by their number. known: losses of the trials that earlier calls finished. Raises UserError, DataError and
    ModelError. A training that diverges is a finished trial without losses.
    """
    losses = dict(known)
    ready = await prepared(experiment, registry)
    tasks: dict[tuple[int, int], Task] = {}
    while due := due_trials(plan, losses):
        for trial in due:
            length = plan.lengths[trial.rung]
            if (length, trial.seed) not in tasks:
                of_length = replace(ready, experiment=replace(experiment, steps=length, every=max(1, length // 5)))
                tasks = {(length, trial.seed): await read_task(of_length, trial.seed, registry, steps=length)}
            task = tasks[length, trial.seed]
            recipe = recipe_of(experiment.run, chosen[trial.candidate])
            finished = await anyio.to_thread.run_sync(_trained, ready, task, recipe, trial, registry)
            losses[trial] = finished.loss
            yield finished


def _trained(ready: Prepared, task: Task, recipe: Recipe, trial: Trial, registry: PluginRegistry) -> Finished:
    began = time.perf_counter()
    try:
        outcome: Outcome | None = train_plugin(ready, task, recipe, trial.seed, registry)
    except NonFiniteError:
        outcome = None
    seconds = time.perf_counter() - began
    if outcome is None or not math.isfinite(outcome.validation_loss):
        return Finished(trial, (), 0.0, seconds)
    return Finished(trial, outcome.losses, outcome.bytes_per_step, seconds)
