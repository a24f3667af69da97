"""The process that `convergence_jobs` starts for one training: `python -m psyche_core.experiments.convergence_worker`.

Standard input: a `Job` as JSON. Standard output: the outcome's table, or the exception's name and message, as JSON. Both ends are
the same program.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import anyio
import torch

from psyche_core import errors
from psyche_core.config.run_config import RunFile
from psyche_core.errors import PsycheError
from psyche_core.experiments.convergence import Outcome, Recipe
from psyche_core.experiments.convergence_run import Experiment, outcomes
from psyche_core.plugins import PluginRegistry


@dataclass(frozen=True, slots=True)
class Job:
    """One training. threads: of torch."""

    experiment: Experiment
    recipe: Recipe
    seed: int
    threads: int

    def encode(self) -> bytes:
        """Return the job as JSON."""
        experiment = {each.name: getattr(self.experiment, each.name) for each in fields(Experiment)}
        experiment["run"] = self.experiment.run.model_dump(mode="json")
        recipe = {"optimizer": self.recipe.optimizer, "rate": self.recipe.rate, "settings": dict(self.recipe.settings)}
        plain = {"experiment": experiment, "recipe": recipe, "seed": self.seed, "threads": self.threads}
        return json.dumps(plain, default=os.fspath).encode()

    @classmethod
    def decode(cls, data: bytes) -> Job:
        """Read what `encode` made."""
        plain = json.loads(data)
        experiment = dict(plain["experiment"])
        experiment["run"] = RunFile.model_validate(experiment["run"])
        for name in ("data", "validation_data", "base", "cache"):
            experiment[name] = Path(experiment[name])
        return cls(Experiment(**experiment), Recipe(**plain["recipe"]), plain["seed"], plain["threads"])


def encoded_outcome(found: Outcome | PsycheError) -> bytes:
    """Return an outcome, or why there is none, as JSON."""
    if isinstance(found, Outcome):
        return json.dumps({"outcome": found.as_table()}).encode()
    return json.dumps({"error": type(found).__name__, "message": str(found)}).encode()


def decoded_outcome(data: bytes) -> Outcome:
    """Read what `encoded_outcome` made. If it is an error, raise that error, or PsycheError if a message alone cannot make it."""
    plain: Mapping[str, Any] = json.loads(data)
    if "outcome" in plain:
        return Outcome.of_table(plain["outcome"])

    kind = getattr(errors, plain["error"], PsycheError)
    try:
        error = kind(plain["message"])
    except TypeError:
        error = PsycheError(plain["message"])
    raise error


async def trained(job: Job) -> Outcome:
    """Train one job. Raises what `outcomes` raises."""
    registry = PluginRegistry.discover()
    (outcome,) = [each async for each in outcomes(job.experiment, [job.recipe], [job.seed], registry)]
    return outcome


def main() -> None:
    """Read the job, train it and write the outcome or the error."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that nothing that a library prints gets into the results
    job = Job.decode(sys.stdin.buffer.read())
    torch.set_num_threads(job.threads)
    found: Outcome | PsycheError
    try:
        found = anyio.run(trained, job)
    except PsycheError as error:
        found = error
    with results:
        results.write(encoded_outcome(found))


if __name__ == "__main__":
    main()
