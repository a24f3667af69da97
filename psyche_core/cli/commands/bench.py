"""`psyche bench`: experiments that show which settings learn, and at what cost."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from psyche_core.cli.commands.bench_options import (
    COMPUTE,
    PATH,
    TRAININGS,
    base_option,
    data_option,
    device_option,
    json_option,
    members_option,
    out_option,
    seeds_option,
    state_option,
    steps_option,
    token_size_option,
    torch_threads_option,
    validation_data_option,
)
from psyche_core.cli.commands.bench_report import check_tokens, learning_rate, read_report, tell_kept, write_report
from psyche_core.cli.commands.bench_tune import tune
from psyche_core.cli.commands.bench_verification import verification
from psyche_core.cli.lazy import WholeSummaries, example
from psyche_core.errors import ConfigError
from psyche_core.option_groups import GroupedCommand, option

if TYPE_CHECKING:
    from psyche_core.experiments.convergence import Outcome, Recipe
    from psyche_core.experiments.convergence_run import Experiment

USUAL = "Usual recipes"
"""Heading of the options that describe what is trained without --recipes."""

_OF_THE_USUAL = frozenset(
    {"topk", "decay", "adamw_rate", "distro_rate", "sparseloco_rate", "sparseloco_inner_steps", "sparseloco_outer_rate"}
)


@click.group(cls=WholeSummaries, context_settings={"max_content_width": 110})
def bench() -> None:
    """Compare optimizers, and measure what verification must allow."""


bench.add_command(tune)
bench.add_command(verification)


@bench.command(
    cls=GroupedCommand,
    epilog=example(
        "psyche bench convergence --state examples/local_testnet/state.toml --data examples/local_testnet/data --seeds 3",
        "psyche bench convergence --state state.toml --data tokens --steps 50 --topk 8 --seeds 1 --out compared",
        "psyche bench convergence --state state.toml --data tokens --recipes rows.toml --jobs 8 --device cuda --out compared",
        note="DisTrO trains with several members and the delay of a run, AdamW on the whole batch without delay. Each result is "
        "written to OUT/report.json at once. The same command again trains only what is missing.",
    ),
)
@state_option("model, schedule and batch sizes")
@data_option
@validation_data_option
@token_size_option
@seeds_option(3, "Number of trainings of each recipe.")
@steps_option(200, "Number of steps of each training.")
@option(
    "--recipes",
    type=PATH,
    group=TRAININGS,
    help="TOML file of what is trained in place of the usual: tables [[recipe]] with optimizer, learning_rate and settings.  "
    "[default: AdamW, and DisTrO with each --topk and --decay, once with values (quantize_1bit = false) and once with signs "
    "(quantize_1bit = true)]",
)
@members_option(4)
@option(
    "--topk",
    default="8,16,64",
    show_default=True,
    metavar="N,N,…",
    group=USUAL,
    help="How many coefficients DisTrO sends of each chunk (compression_topk), and values SparseLoCo.",
)
@option(
    "--decay",
    default="0.999,0.995",
    show_default=True,
    metavar="X,X,…",
    group=USUAL,
    help="Decays of DisTrO's momentum (compression_decay).",
)
@option(
    "--adamw-rate",
    default=3e-3,
    show_default=True,
    metavar="X",
    callback=learning_rate,
    group=USUAL,
    help="Base learning rate of AdamW.",
)
@option(
    "--distro-rate",
    default=2e-3,
    show_default=True,
    metavar="X",
    callback=learning_rate,
    group=USUAL,
    help="Base learning rate of DisTrO.",
)
@option(
    "--sparseloco-rate",
    type=float,
    metavar="X",
    callback=learning_rate,
    group=USUAL,
    help="Base learning rate of SparseLoCo's inner steps.  [default: it is left out]",
)
@option(
    "--sparseloco-inner-steps",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    metavar="N",
    group=USUAL,
    help="SparseLoCo's inner steps on a share.",
)
@option(
    "--sparseloco-outer-rate", default=1.0, show_default=True, metavar="X", group=USUAL, help="SparseLoCo's outer learning rate."
)
@device_option
@torch_threads_option
@option(
    "--jobs",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    metavar="N",
    group=COMPUTE,
    help="Trainings at once, each a process; the cores are divided among them unless --torch-threads is given.",
)
@out_option("report.json and convergence.png")
@base_option
@json_option
def convergence(**given: Any) -> None:
    """Train one small model with AdamW, with DisTrO's settings and, if asked, with SparseLoCo; show loss and bytes of each."""
    from psyche_core.cli.program import run_program

    if given["recipes"] is not None:
        _refuse_options_of_the_usual()
    run_program(functools.partial(_convergence, given))


def _refuse_options_of_the_usual() -> None:
    """With --recipes, options that describe the usual recipes would do nothing."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in _OF_THE_USUAL and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            message = (
                f"{parameter.opts[0]} is for the usual recipes, and --recipes says what is trained instead; give one of them"
            )
            raise click.UsageError(message)


async def _convergence(given: dict[str, Any]) -> None:
    from psyche_core.config.run_config import load_run_file
    from psyche_core.experiments.convergence import PLAIN_ADAMW, table
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
    check_tokens(given["data"], given["validation_data"])
    registry = PluginRegistry.discover()
    recipes = _usual(given) if given["recipes"] is None else load_recipes(given["recipes"], registry)
    for name in dict.fromkeys(recipe.optimizer for recipe in recipes if recipe.optimizer != PLAIN_ADAMW):
        registry.load("optimizer", name)  # now, and not after the trainings before it
    seeds = range(given["seeds"])
    path = None if given["out"] is None else given["out"] / "report.json"
    found = _kept(path, experiment)
    known = {(outcome.recipe.title, outcome.seed) for outcome in found}
    left = sum((recipe.title, seed) not in known for recipe in recipes for seed in seeds)
    _keep(path, experiment, found)
    click.echo(f"{left} trainings of {experiment.steps} steps", err=True)
    tell_kept(path, len(found))

    def finished(outcome: Outcome) -> None:
        nonlocal left
        found.append(outcome)
        left -= 1
        click.echo(f"{outcome.recipe.title}, seed {outcome.seed}: loss {outcome.validation_loss:.4f}; {left} left", err=True)
        _keep(path, experiment, found)

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


def _kept(path: Path | None, experiment: Experiment) -> list[Outcome]:
    """All outcomes saved by earlier calls, also those that were not requested now.

    Raises ConfigError if they belong to another experiment.
    """
    from psyche_core.experiments.convergence import Outcome

    def read(report: dict[str, Any]) -> list[Outcome]:
        return [Outcome.of_table(entry) for entry in report["runs"]]

    known = None if path is None else read_report(path, _facts(experiment), command="psyche bench convergence", read=read)
    return known or []


def _keep(path: Path | None, experiment: Experiment, found: list[Outcome]) -> None:
    if path is None:
        return

    write_report(path, {**_facts(experiment), "runs": [outcome.as_table() for outcome in found]})
    if not found:
        return

    from psyche_core.experiments.convergence_plot import plot

    try:
        plot(path.with_name("convergence.png"), found)
    except ModuleNotFoundError:
        click.echo("no plot: it needs matplotlib; pip install 'psyche-core[plot]'", err=True)
