"""The process that `convergence_jobs` starts for one training: `python -m psyche_core.experiments.convergence_worker`.

Standard input: a pickled `Job`. Standard output: the pickled outcome, or the pickled exception. Both ends are the same program.
"""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass

import anyio
import torch

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


async def trained(job: Job) -> Outcome:
    """Train. Raises what `outcomes` raises."""
    registry = PluginRegistry.discover()
    (outcome,) = [each async for each in outcomes(job.experiment, [job.recipe], [job.seed], registry)]
    return outcome


def main() -> None:
    """Read the job, train it and write what comes of it."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get between
    job: Job = pickle.load(sys.stdin.buffer)  # noqa: S301  # written by the process that started this one
    torch.set_num_threads(job.threads)
    found: Outcome | PsycheError
    try:
        found = anyio.run(trained, job)
    except PsycheError as error:
        found = error
    with results:
        pickle.dump(found, results)


if __name__ == "__main__":
    # Under its own name, not as `__main__`, so that both processes mean the same class `Job`.
    from psyche_core.experiments import convergence_worker

    convergence_worker.main()
