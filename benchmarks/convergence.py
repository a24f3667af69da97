"""AdamW beside DisTrO with its settings, on the local testnet's model and Shakespeare: `psyche bench convergence` for it.

python -m benchmarks.convergence [--size 1M] [--seeds 3] [--steps 200] [--json] [any other option of `psyche bench convergence`]
python -m benchmarks.convergence --quick [--delayed] [--json] [--seeds 3] [--steps 200] [--jobs 2]

`--quick` compares three recipes at tuned rates: AdamW with rate groups, the example's own DisTrO, and DisTrO as the reference
has it, with one rate for all tensors. Its JSON has the mean validation loss by recipe, the bytes a member sends in a step, and
the loss of each seed. `--delayed` adds AdamW with the delay of a run, without look-ahead and with it, at AdamW's rates, which
were not tuned for a delay. `--size` takes one of `benchmarks.llama.SIZES`, with everything else as in the example.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import llama
from psyche_core.cli import main as psyche
from psyche_core.cli.program import run_program
from psyche_core.config.run_config import load_run_file
from psyche_core.experiments.convergence import PLAIN_ADAMW, Outcome, Recipe, table
from psyche_core.experiments.convergence_jobs import train_recipes
from psyche_core.experiments.convergence_run import Experiment
from psyche_core.plugins import PluginRegistry
from psyche_core.storage.scratch import default_folder
from psyche_core.training.trainer import APPLY_DELAY

STATE = llama.EXAMPLE / "state.toml"
ADAMW_RATE, ADAMW_REST = 4.8e-3, 7.5
"""AdamW's tuned rate of matrices, and the factor of all other tensors."""

UNIFORM_RATE = 2.4e-3
"""DisTrO's tuned rate where it is one for all tensors."""

OURS = frozenset({"rates", "gradient_beta2", "compression_subtract"})
"""Settings of the example that the reference implementation does not have."""


def main() -> None:
    """Call the command with the example's model and data, which is made when it is not there."""
    llama.tokens("training")
    if "--quick" in sys.argv[1:]:
        parser = argparse.ArgumentParser(prog="python -m benchmarks.convergence")
        parser.add_argument("--quick", action="store_true", required=True)
        parser.add_argument("--delayed", action="store_true")
        parser.add_argument("--json", action="store_true")
        parser.add_argument("--seeds", type=int, default=3)
        parser.add_argument("--steps", type=int, default=200)
        parser.add_argument(
            "--jobs", type=int, default=os.cpu_count() or 1, help="trainings at once, a thread each (default: cores)"
        )
        given = parser.parse_args()
        run_program(
            functools.partial(quick, given.seeds, given.steps, delayed=given.delayed, as_json=given.json, jobs=given.jobs)
        )
        return

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--size", choices=llama.SIZES, default="1M")
    given, others = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        state = STATE if given.size == "1M" else resized(Path(folder), given.size)
        psyche(["bench", "convergence", "--state", str(state), "--data", str(llama.EXAMPLE / "data"), *others])


def resized(folder: Path, size: str) -> Path:
    """Write the example's run with a model of another size; returns the run file. Its run_id has the size in it."""
    (folder / "model").mkdir()
    llama.write_config(folder / "model", size)
    run_id = load_run_file(STATE).run_id
    text = STATE.read_text(encoding="utf-8")
    (folder / STATE.name).write_text(text.replace(f'run_id = "{run_id}"', f'run_id = "{run_id}-{size}"'), encoding="utf-8")
    return folder / STATE.name


def quick_recipes(*, delayed: bool = False) -> dict[str, Recipe]:
    """The recipes by name. DisTrO with rate groups is the example's own. delayed: AdamW with a run's delay, too."""
    llm = load_run_file(STATE).model.LLM
    settings, rate = dict(llm.optimizer.settings or {}), float((llm.lr_schedule.settings or {})["base_lr"])
    rest = dict.fromkeys(("head", "embedding", "norm"), ADAMW_REST)
    late: dict[str, dict[str, Any]] = {"adamw_delayed": {}, "adamw_delayed_look_ahead": {"look_ahead": True}} if delayed else {}
    return {
        "adamw": Recipe(PLAIN_ADAMW, ADAMW_RATE, {"rates": rest}),
        **{name: Recipe(PLAIN_ADAMW, ADAMW_RATE, {"rates": rest, "delay": APPLY_DELAY, **more}) for name, more in late.items()},
        "distro": Recipe("Distro", rate, settings),
        "distro_uniform": Recipe("Distro", UNIFORM_RATE, {key: value for key, value in settings.items() if key not in OURS}),
    }


async def quick(seeds: int, steps: int, *, delayed: bool, as_json: bool, jobs: int) -> None:
    """Train the recipes with each seed and print their losses. jobs: trainings at once, of one thread each."""
    data = llama.EXAMPLE / "data"
    experiment = Experiment(
        run=load_run_file(STATE),
        data=data,
        validation_data=data / "validation",
        steps=steps,
        members=4,
        every=steps,
        base=llama.EXAMPLE,
        cache=default_folder(),
        device="cpu",
    )
    chosen = quick_recipes(delayed=delayed)
    names = {recipe.title: name for name, recipe in chosen.items()}
    found: dict[str, list[Outcome]] = {name: [] for name in names.values()}

    def finished(outcome: Outcome) -> None:
        found[names[outcome.recipe.title]].append(outcome)
        print(f"{outcome.recipe.title}, seed {outcome.seed}: {outcome.validation_loss:.4f}", file=sys.stderr, flush=True)

    registry = PluginRegistry.discover()
    await train_recipes(
        experiment, list(chosen.values()), range(seeds), registry, finished=finished, jobs=max(jobs, 1), torch_threads=1
    )
    found = {name: sorted(same, key=lambda outcome: outcome.seed) for name, same in found.items()}
    every = [outcome for same in found.values() for outcome in same]
    print(json.dumps(summary(found)) if as_json else table(every))


def summary(found: Mapping[str, list[Outcome]]) -> dict[str, Any]:
    """Mean loss, mean bytes and the losses of all seeds, by recipe."""
    losses = {name: [round(outcome.validation_loss, 4) for outcome in same] for name, same in found.items()}
    return {
        **{name: round(statistics.fmean(values), 4) for name, values in losses.items()},
        "bytes": {name: round(statistics.fmean(outcome.bytes_per_step for outcome in same)) for name, same in found.items()},
        "seeds": losses,
    }


if __name__ == "__main__":
    main()
