"""`psyche bench verification`: how far honest training differs between machines, and how far lazy work does from it."""

from __future__ import annotations

import functools
import json
import os
from typing import TYPE_CHECKING, Any

import click

from psyche_core.cli.commands.bench_options import (
    base_option,
    data_option,
    json_option,
    members_option,
    seeds_option,
    state_option,
    steps_option,
    token_size_option,
)
from psyche_core.cli.commands.bench_report import check_tokens
from psyche_core.cli.lazy import example
from psyche_core.errors import ConfigError
from psyche_core.option_groups import GroupedCommand, option

if TYPE_CHECKING:
    from psyche_core.experiments.replayed_training import MeasuredShare

DTYPES = ("float32", "bfloat16")
MEASUREMENTS = "Measurements"
"""Heading of the options that say what is measured."""

MOST_THREADS = 256
"""Most CPU threads that are tried; more than most machines have, and less than what systems refuse."""


@click.command(
    cls=GroupedCommand,
    epilog=example(
        "psyche bench verification --state examples/local_testnet/state.toml --data examples/local_testnet/data",
        "psyche bench verification --state state.toml --data tokens --steps 200 --shares 100 --seeds 3 --budget 3600 --json",
        note="A verifier computes a member's gradient again and compares: T is 0 for equal gradients, 1 for unrelated ones. Two "
        "honest machines differ a little, by rounding. This command trains a few members as in a run, recomputes some of "
        "their shares with other dtypes, micro-batches, thread counts and devices, and scores members that cheat. The threshold "
        "that it proposes lies between the two. Measure at the rates of your run: scores depend on the rate. "
        "docs/explanation/verification.md explains the scores. Put what is proposed into the run file: threshold and "
        "median_threshold of [model.verification].",
    ),
)
@state_option("model, optimizer, schedule and batch sizes")
@data_option
@token_size_option
@seeds_option(1, "Number of trainings, each with other first weights and data.")
@steps_option(40, "Number of steps of each training. A longer warm-up of the rate than half of them is shortened to that.")
@members_option(3)
@option(
    "--shares",
    type=click.IntRange(2),
    default=16,
    show_default=True,
    metavar="N",
    group=MEASUREMENTS,
    help="Shares to recompute while the rate rises, and as many at its peak, in each training.",
)
@option(
    "--budget",
    type=click.FloatRange(1),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    group=MEASUREMENTS,
    help="End after this time, with what was measured so far. Half of it is for the rising rate.",
)
@option(
    "--dtypes",
    default="float32,bfloat16",
    show_default=True,
    metavar="NAME,…",
    group=MEASUREMENTS,
    help="Compute dtypes; members use the first.",
)
@option(
    "--micro-batches",
    default="8,1",
    show_default=True,
    metavar="N,…",
    group=MEASUREMENTS,
    help="Sequences per forward pass; members use the first.",
)
@option(
    "--threads",
    default="auto",
    show_default=True,
    metavar="N,…",
    group=MEASUREMENTS,
    help="CPU threads for torch; members use the first. auto: 1, and 2 if this process may use two cores.",
)
@option(
    "--devices",
    default="auto",
    show_default=True,
    metavar="NAME,…",
    group=MEASUREMENTS,
    help="Devices; members use the first. auto: cuda if there is one, and cpu.",
)
@base_option
@json_option
def verification(**given: Any) -> None:
    """Measure how far honest training differs from machine to machine, and how far lazy work does; propose a threshold."""
    from psyche_core.cli.program import run_program

    run_program(functools.partial(_verification, given))


async def _verification(given: dict[str, Any]) -> None:
    import torch

    from psyche_core.config.run_config import load_run_file
    from psyche_core.experiments.replay_report import as_table, as_text
    from psyche_core.experiments.replay_run import PEAK, ReplayExperiment, measured_steps
    from psyche_core.experiments.replayed_training import kinds_of_arithmetic
    from psyche_core.plugins import PluginRegistry
    from psyche_core.storage.scratch import default_folder
    from psyche_core.verification.replay import Rule

    dtypes = given["dtypes"].split(",")
    if unknown := [name for name in dtypes if name not in DTYPES]:
        message = f"--dtypes: expected some of {', '.join(DTYPES)}, got {unknown[0]!r}"
        raise ConfigError(message)

    check_tokens(given["data"], None)
    tried = kinds_of_arithmetic(
        dtypes=dtypes,
        micro_batches=_counts("--micro-batches", given["micro_batches"]),
        threads=_threads(given["threads"]),
        devices=_devices(given["devices"], cuda=torch.cuda.is_available()),
    )
    torch.set_num_threads(tried[0].threads)
    run = load_run_file(given["state"])
    thresholds = run.model.thresholds
    experiment = ReplayExperiment(
        run=run,
        rule=Rule(threshold=thresholds.threshold, median_threshold=thresholds.median_threshold),
        data=given["data"],
        token_size=given["token_size"],
        steps=given["steps"],
        members=given["members"],
        shares=given["shares"],
        budget=given["budget"],
        compared=tried,
        base=given["base"] or given["state"].parent,
        cache=default_folder(),
    )
    found: list[MeasuredShare] = []
    last = None
    async for last in measured_steps(experiment, range(given["seeds"]), PluginRegistry.discover()):
        found += last.found
        if last.found:
            wanted = 2 * given["shares"] * given["seeds"]
            place = f"seed {last.seed}, step {last.step} of {given['steps']}"
            click.echo(f"{place}: {len(found)} of at most {wanted} shares recomputed, {last.seconds:.0f} s", err=True)
    if len(found) < 2:
        message = f"in {given['budget']:g} s fewer than two shares were recomputed: raise --budget, or try less"
        raise ConfigError(message)

    peak = sum(share.phase == PEAK for share in found) >= 2
    if last is not None and last.step < given["steps"]:
        click.echo(f"the budget of {given['budget']:g} s was used up at step {last.step} of {given['steps']}", err=True)
    if not peak:
        click.echo("the peak of the rate was not reached: raise --budget, or lower --steps or --shares", err=True)
    if given["as_json"]:
        facts = {"run_id": experiment.run.run_id, "steps": given["steps"], "members": given["members"], "seeds": given["seeds"]}
        titles = {"compared": [one.title for one in tried], "peak_reached": peak}
        click.echo(json.dumps({**facts, **titles, **as_table(found, experiment.rule)}))
    else:
        click.echo(as_text(found, experiment.rule))


def _counts(option: str, text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        message = f"{option}: expected numbers from 1, separated by commas, got {text!r}"
        raise ConfigError(message)

    return counts


def _threads(text: str) -> list[int]:
    if text != "auto":
        found = _counts("--threads", text)
        if max(found) > MOST_THREADS:
            message = f"--threads takes numbers up to {MOST_THREADS}, got {text!r}"
            raise ConfigError(message)
        return found

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [1, 2] if cores > 1 else [1]


def _devices(text: str, *, cuda: bool) -> list[str]:
    if text != "auto":
        return text.split(",")

    return ["cuda", "cpu"] if cuda else ["cpu"]
