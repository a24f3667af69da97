"""`psyche bench`: experiments that show which settings learn, and at what cost."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psyche_core.cli.commands.bench_tune import tune
from psyche_core.cli.commands.bench_verification import verification
from psyche_core.cli.lazy import WholeSummaries, example
from psyche_core.errors import ConfigError

if TYPE_CHECKING:
    from psyche_core.experiments.convergence import Outcome, Recipe
    from psyche_core.experiments.convergence_run import Experiment

PATH = click.Path(path_type=Path)


@click.group(cls=WholeSummaries, context_settings={"max_content_width": 110})
def bench() -> None:
    """Compare optimizers, and measure what verification must allow."""


bench.add_command(tune)
bench.add_command(verification)


@bench.command(
    epilog=example(
        "psyche bench convergence --state examples/local_testnet/state.toml --data examples/local_testnet/data --seeds 3",
        "psyche bench convergence --state state.toml --data tokens --steps 50 --topk 8 --seeds 1 --out compared",
        "psyche bench convergence --state state.toml --data tokens --recipes rows.toml --jobs 8 --device cuda --out compared",
        note="DisTrO trains with several members and the delay of a run, AdamW on the whole batch without delay. Each result is "
        "written to OUT/report.json at once. The same command again trains only what is missing.",
    )
)
@click.option("--state", type=PATH, required=True, help="Run file: its model, schedule and batch sizes are used.")
@click.option("--data", type=PATH, required=True, help="Token file or folder of them.")
@click.option("--validation-data", type=PATH, help="Held-out tokens.  [default: DATA/validation]")
@click.option(
    "--token-size",
    type=click.Choice(["TwoBytes", "FourBytes"]),
    default="TwoBytes",
    show_default=True,
    help="Bytes per token of both.",
)
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=3, show_default=True, metavar="N", help="Number of trainings of each recipe."
)
@click.option(
    "--steps", type=click.IntRange(4), default=200, show_default=True, metavar="N", help="Number of steps of each training."
)
@click.option(
    "--recipes",
    type=PATH,
    help="TOML file of what is trained in place of the usual: tables [[recipe]] with optimizer, learning_rate and settings.  "
    "[default: AdamW, and DisTrO with each --topk and --decay]",
)
@click.option("--members", type=click.IntRange(1, 256), default=4, show_default=True, metavar="N", help="Number of members.")
@click.option("--topk", default="8,16,64", show_default=True, metavar="N,N,…", help="Coefficients per chunk to try.")
@click.option("--decay", default="0.999,0.995", show_default=True, metavar="X,X,…", help="Decays of DisTrO's momentum to try.")
@click.option("--adamw-rate", default=3e-3, show_default=True, metavar="X", help="Base learning rate of AdamW.")
@click.option("--distro-rate", default=2e-3, show_default=True, metavar="X", help="Base learning rate of DisTrO.")
@click.option(
    "--sparseloco-rate",
    type=click.FloatRange(0, min_open=True),
    metavar="X",
    help="Base learning rate of SparseLoCo's inner steps.  [default: it is left out]",
)
@click.option(
    "--sparseloco-inner-steps", type=click.IntRange(1), default=8, show_default=True, metavar="N", help="Its steps on a share."
)
@click.option("--sparseloco-outer-rate", default=1.0, show_default=True, metavar="X", help="Its outer rate.")
@click.option("--device", default="auto", show_default=True, help="As for `psyche client train`.")
@click.option("--torch-threads", type=click.IntRange(1), metavar="N", help="CPU threads for torch; default: chosen by torch.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    metavar="N",
    help="Trainings at once, each a process; the cores are divided among them unless --torch-threads is given.",
)
@click.option("--out", type=PATH, help="Folder for report.json and convergence.png.  [default: nothing is kept]")
@click.option("--base", type=PATH, help="Folder at which relative paths of the run file start; default: the run file's folder.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, for programs.")
def convergence(**given: Any) -> None:
    """Train one small model with AdamW, with DisTrO's settings and, if asked, with SparseLoCo; show loss and bytes of each."""
    from psyche_core.cli.program import run_program

    run_program(functools.partial(_convergence, given))


async def _convergence(given: dict[str, Any]) -> None:
    from psyche_core.config.run_config import load_run_file
    from psyche_core.experiments.convergence import table
    from psyche_core.experiments.convergence_jobs import load_recipes, train_recipes
    from psyche_core.experiments.convergence_run import Experiment
    from psyche_core.plugins import PluginRegistry
    from psyche_core.storage.scratch import default_folder

    experiment = Experiment(
        run=load_run_file(given["state"]),
        data=given["data"],
        validation_data=given["validation_data"] or given["data"] / "validation",
        token_size=given["token_size"],
        steps=given["steps"],
        members=given["members"],
        every=max(1, given["steps"] // 10),
        base=given["base"] or given["state"].parent,
        cache=default_folder(),
        device=given["device"],
    )
    registry = PluginRegistry.discover()
    recipes = _usual(given) if given["recipes"] is None else load_recipes(given["recipes"], registry)
    seeds = range(given["seeds"])
    found = _kept(given["out"], experiment)
    known = {(outcome.recipe.title, outcome.seed) for outcome in found}
    left = sum((recipe.title, seed) not in known for recipe in recipes for seed in seeds)

    def finished(outcome: Outcome) -> None:
        nonlocal left
        found.append(outcome)
        left -= 1
        click.echo(f"{outcome.recipe.title}, seed {outcome.seed}: loss {outcome.validation_loss:.4f}; {left} left", err=True)
        _keep(given["out"], experiment, found)

    threads = given["torch_threads"]
    await train_recipes(
        experiment, recipes, seeds, registry, finished=finished, known=known, jobs=given["jobs"], torch_threads=threads
    )
    click.echo(json.dumps({"runs": [outcome.as_table() for outcome in found]}) if given["as_json"] else table(found))


def _usual(given: dict[str, Any]) -> list[Recipe]:
    """The recipes that the options describe."""
    from psyche_core.experiments.convergence import sparseloco_recipes, usual_recipes

    keep, decays = _numbers(given["topk"], int), _numbers(given["decay"], float)
    rates = {"adamw_rate": given["adamw_rate"], "distro_rate": given["distro_rate"]}
    recipes = list(usual_recipes(topk=keep, decays=decays, **rates))
    if given["sparseloco_rate"] is not None:
        steps, outer = given["sparseloco_inner_steps"], given["sparseloco_outer_rate"]
        recipes += sparseloco_recipes(topk=keep, rate=given["sparseloco_rate"], inner_steps=steps, outer_rate=outer)
    return recipes


def _numbers(text: str, kind: Any) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as error:
        message = f"expected numbers separated by commas, got {text!r}"
        raise ConfigError(message) from error


def _facts(experiment: Experiment) -> dict[str, Any]:
    """The facts that must be equal for outcomes to be comparable."""
    return {"run_id": experiment.run.run_id, "steps": experiment.steps, "members": experiment.members}


def _kept(out: Path | None, experiment: Experiment) -> list[Outcome]:
    """All outcomes saved by earlier calls, also those that were not requested now.

    Raises ConfigError if they belong to another experiment.
    """
    from psyche_core.experiments.convergence import Outcome

    path = None if out is None else out / "report.json"
    if path is None or not path.exists():
        return []

    report = json.loads(path.read_text())
    if {name: report.get(name) for name in _facts(experiment)} != _facts(experiment):
        message = f"{path} belongs to another experiment; choose another folder with --out, or delete the file"
        raise ConfigError(message)

    return [Outcome.of_table(entry) for entry in report["runs"]]


def _keep(out: Path | None, experiment: Experiment, found: list[Outcome]) -> None:
    if out is None:
        return

    from psyche_core.experiments.convergence_plot import plot

    out.mkdir(parents=True, exist_ok=True)
    partial = out / "report.json.partial"
    partial.write_text(json.dumps({**_facts(experiment), "runs": [outcome.as_table() for outcome in found]}, indent=1) + "\n")
    partial.replace(out / "report.json")
    try:
        plot(out / "convergence.png", found)
    except ModuleNotFoundError:
        click.echo("no plot: it needs matplotlib; pip install 'psyche-core[plot]'", err=True)
