"""`psyche bench tune`: search an optimizer's settings for a run file within a budget."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psyche_core.cli.commands.bench_options import (
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
from psyche_core.cli.commands.bench_report import check_tokens, read_report, tell_kept, write_report
from psyche_core.cli.lazy import example
from psyche_core.errors import ConfigError
from psyche_core.option_groups import GroupedCommand, option

if TYPE_CHECKING:
    from psyche_core.experiments.convergence_run import Experiment
    from psyche_core.experiments.tuning import Axis, Candidate, Plan
    from psyche_core.experiments.tuning_run import Finished

SEARCH = "Search"
"""Heading of the options of the search."""

USUAL_SPAN = 4.0
"""The base rate is searched between the run file's divided by this and multiplied by this."""


@click.command(
    cls=GroupedCommand,
    epilog=example(
        "psyche bench tune --state examples/local_testnet/state.toml --data examples/local_testnet/data --minutes 20 --out tuned",
        "psyche bench tune --state state.toml --data tokens --trials 27 --vary rate=0.0005:0.008 --vary rest=1:16",
        "psyche bench tune --state state.toml --data tokens --vary compression_topk=16,32,64 --vary compression_decay=0.99,0.999",
        note="All candidates train for a few steps, the best third three times as long, and so on; the best train for all "
        "steps, the run file as it is beside them. Everything trained is written to OUT/report.json at once. The same command "
        "again goes on where it stopped.",
    ),
)
@state_option("model, optimizer, schedule and batch sizes")
@data_option
@validation_data_option
@token_size_option
@option(
    "--vary",
    multiple=True,
    metavar="KEY=VALUES",
    group=SEARCH,
    help="A setting to search: KEY=LOW:HIGH, on a logarithmic scale, or KEY=A,B,C; can be repeated. `rate` is the base learning "
    "rate, `rest` the factor of it for head, embedding and norms; any other KEY is one of the optimizer's settings.  "
    "[default: rate from a quarter of the run file's to four times it; rest from 1 to 16 where the optimizer has rate groups]",
)
@option("--trials", type=click.IntRange(2, 10_000), metavar="N", group=SEARCH, help="Number of candidates.  [default: 27]")
@option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    metavar="X",
    group=SEARCH,
    help="Choose the number of candidates so that the search takes about this long; the first training is timed for it.",
)
@steps_option(200, "Steps of the longest trainings.")
@option(
    "--shortest",
    type=click.IntRange(2),
    metavar="N",
    group=SEARCH,
    help="Least steps of the first trainings.  [default: twice the warm-up of the rate]",
)
@option(
    "--eta",
    type=click.IntRange(2, 16),
    default=3,
    show_default=True,
    metavar="N",
    group=SEARCH,
    help="One candidate in N trains on, N times as long.",
)
@seeds_option(1, "Longest trainings of each candidate.")
@option("--search-seed", type=int, default=0, show_default=True, metavar="N", group=SEARCH, help="Determines the candidates.")
@members_option(4)
@device_option
@torch_threads_option
@out_option("report.json and tuned.toml")
@base_option
@json_option
def tune(**given: Any) -> None:
    """Search learning rates and other optimizer settings for a run file, by successive halving; print the lines to change."""
    from psyche_core.cli.program import run_program

    run_program(functools.partial(_tune, given))


async def _tune(given: dict[str, Any]) -> None:
    import torch

    from psyche_core.config.run_config import load_run_file
    from psyche_core.experiments.convergence_run import Experiment
    from psyche_core.experiments.tuning import candidates
    from psyche_core.experiments.tuning_run import check_candidates, finished_trials
    from psyche_core.plugins import PluginRegistry
    from psyche_core.storage.scratch import default_folder

    if given["trials"] and given["minutes"]:
        message = "--trials and --minutes both determine the number of candidates; give one of them"
        raise ConfigError(message)
    check_tokens(given["data"], given["validation_data"])
    if given["torch_threads"] is not None:
        torch.set_num_threads(given["torch_threads"])
    registry = PluginRegistry.discover()
    experiment = Experiment(
        run=load_run_file(given["state"]),
        data=given["data"],
        validation_data=given["validation_data"] or given["data"] / "validation",
        token_size=given["token_size"],
        steps=given["steps"],
        members=given["members"],
        every=given["steps"],
        base=given["base"] or given["state"].parent,
        cache=default_folder(),
        device=given["device"],
    )
    axes = _axes(given["vary"], experiment, registry)
    report = _Report(given["out"], experiment, axes, given["search_seed"])
    plan = report.plan or _first_plan(given, experiment)
    chosen = candidates(axes, plan.candidates, seed=given["search_seed"])
    check_candidates(experiment.run, axes, chosen, registry)
    if report.plan is None and given["minutes"]:
        async with contextlib.aclosing(finished_trials(experiment, chosen, plan, registry, known={})) as trials:
            report.add(await anext(trials))
        plan = _plan_within(given, plan, report.finished[0])
        chosen = candidates(axes, plan.candidates, seed=given["search_seed"])
        check_candidates(experiment.run, axes, chosen, registry)
    report.keep(plan)
    click.echo(_what(plan, axes), err=True)
    report.tell_kept()
    async for trial in finished_trials(experiment, chosen, plan, registry, known=report.losses):
        report.add(trial)
        report.keep(plan)
        click.echo(_progress(report.finished, plan, chosen), err=True)
    report.show(plan, chosen, as_json=given["as_json"])


def _axes(texts: Sequence[str], experiment: Experiment, registry: Any) -> tuple[Axis, ...]:
    """What is searched. Raises ConfigError for what cannot be read, and for a key that is given twice."""
    from psyche_core.experiments.tuning import RATE, REST, Axis, Candidate, axis, check_axes
    from psyche_core.experiments.tuning_run import recipe_of

    if texts:
        axes = tuple(axis(text) for text in texts)
        check_axes(axes)
        return axes

    rate = recipe_of(experiment.run, Candidate(0, {})).rate
    settings = getattr(registry.load("optimizer", experiment.run.model.LLM.optimizer.name), "settings", None)
    usual = Axis(RATE, rate / USUAL_SPAN, rate * USUAL_SPAN)
    has_groups = settings is not None and "rates" in settings.model_fields
    return (usual, Axis(REST, 1.0, 16.0)) if has_groups else (usual,)


def _first_plan(given: Mapping[str, Any], experiment: Experiment) -> Plan:
    """The plan of --trials. With --minutes it holds for the first training, which is timed."""
    from psyche_core.experiments.tuning import Plan, rung_lengths

    warmup = int((experiment.run.model.LLM.lr_schedule.settings or {}).get("warmup_steps", 0))
    shortest = given["shortest"] or max(2 * warmup, 4)
    lengths = rung_lengths(given["steps"], shortest=shortest, eta=given["eta"])
    return Plan(
        lengths=lengths, candidates=given["trials"] or (2 if given["minutes"] else 27), eta=given["eta"], seeds=given["seeds"]
    )


def _plan_within(given: Mapping[str, Any], plan: Plan, timed: Finished) -> Plan:
    """The plan that takes as long as was asked for, from the time of one training."""
    from psyche_core.experiments.tuning import plan_within

    seconds = timed.seconds / plan.lengths[timed.trial.rung]
    return plan_within(given["minutes"] * 60 / seconds, lengths=plan.lengths, eta=plan.eta, seeds=plan.seeds)


def _what(plan: Plan, axes: Sequence[Axis]) -> str:
    rungs = ", then ".join(f"{count} for {length} steps" for length, count in zip(plan.lengths, plan.counts, strict=True))
    searched = ", ".join(
        f"{each.name} {','.join(map(str, each.choices))}" if each.choices else f"{each.name} {each.low:g} to {each.high:g}"
        for each in axes
    )
    return f"searching {searched}: {rungs} ({plan.steps:,} steps in all, the run file as it is to the end among them)"


def _progress(finished: Sequence[Finished], plan: Plan, chosen: Sequence[Candidate]) -> str:
    from psyche_core.ui.formatting import duration_text

    last = finished[-1]
    done = sum(plan.lengths[each.trial.rung] for each in finished)
    seconds = sum(each.seconds for each in finished)
    left = max(0, plan.steps - done) * seconds / done
    loss = f"loss {last.loss:.4f}" if last.losses else "diverged"
    steps = plan.lengths[last.trial.rung]
    return f"{steps} steps, {chosen[last.trial.candidate].title}: {loss}; about {duration_text(left)} left"


class _Report:
    """What was trained, in memory and in OUT/report.json."""

    def __init__(self, out: Path | None, experiment: Experiment, axes: Sequence[Axis], search_seed: int) -> None:
        """Read what earlier calls finished. Raises ConfigError if it belongs to another search."""
        self._path = None if out is None else out / "report.json"
        self._experiment = experiment
        self._axes = axes
        self.finished: list[Finished] = []
        self.plan: Plan | None = None
        self._facts = {
            "run_id": experiment.run.run_id,
            "steps": experiment.steps,
            "members": experiment.members,
            "search_seed": search_seed,
            "optimizer": experiment.run.model.LLM.optimizer.name,
            "axes": [
                {"key": each.name, "choices": list(each.choices)}
                if each.choices
                else {"key": each.name, "low": each.low, "high": each.high}
                for each in axes
            ],
        }
        known = None if self._path is None else read_report(self._path, self._facts, command="psyche bench tune", read=_read)
        if known is not None:
            self.plan, self.finished = known

    @property
    def losses(self) -> dict[Any, float]:
        """Final loss of each finished trial."""
        return {each.trial: each.loss for each in self.finished}

    def add(self, trial: Finished) -> None:
        """A trial is finished."""
        self.finished.append(trial)

    def as_table(self, plan: Plan) -> dict[str, Any]:
        """The report as a table for JSON."""
        return {
            **self._facts,
            "rungs": list(plan.lengths),
            "candidates": plan.candidates,
            "eta": plan.eta,
            "seeds": plan.seeds,
            "trials": [each.as_table() for each in self.finished],
        }

    def keep(self, plan: Plan) -> None:
        """Write the report."""
        if self._path is not None:
            write_report(self._path, self.as_table(plan))

    def tell_kept(self) -> None:
        """Say what earlier calls trained, and what is kept if this one is stopped."""
        tell_kept(self._path, len(self.finished))

    def show(self, plan: Plan, chosen: Sequence[Candidate], *, as_json: bool) -> None:
        """Print the table of trials, the best candidate and the lines that it changes in a run file."""
        import tomli_w

        from psyche_core.experiments.tuning import at_edges, winner
        from psyche_core.experiments.tuning_run import tuned_tables

        best = winner(self.losses)
        assert best is not None, "a search that ended has trained something"
        winning = chosen[best.candidate]
        total = int((self._experiment.run.model.LLM.lr_schedule.settings or {}).get("total_steps", self._experiment.steps))
        tables = tuned_tables(self._experiment.run, winning, steps=total)
        lines = tomli_w.dumps(tables)
        if self._path is not None and winning.number:
            self._path.with_name("tuned.toml").write_text(lines)
        edges = [each.name for each in at_edges(self._axes, winning)]
        if as_json:
            extra = {"best": dict(winning.values), "best_candidate": best.candidate, "at_edge": edges, "tables": tables}
            click.echo(json.dumps({**self.as_table(plan), **extra}))
            return

        click.echo(_ranking(self.finished, plan, chosen))
        if not winning.number:
            click.echo(f"\nOf the candidates that trained {plan.lengths[-1]} steps none was better than the run file as it is.")
            return
        for name in edges:
            click.echo(f"\nThe best {name} lies at an end of its range; widen it with --vary {name}=LOW:HIGH.")
        click.echo(f"\nBest: {winning.title}. Replace these tables of the run file:\n\n{lines}", nl=False)
        click.echo("\n`psyche server validate-config` says whether the changed file is right.")


def _read(report: dict[str, Any]) -> tuple[Plan, list[Finished]]:
    from psyche_core.experiments.tuning import Plan
    from psyche_core.experiments.tuning_run import Finished

    plan = Plan(lengths=tuple(report["rungs"]), candidates=report["candidates"], eta=report["eta"], seeds=report["seeds"])
    return plan, [Finished.of_table(entry) for entry in report["trials"]]


def _ranking(finished: Sequence[Finished], plan: Plan, chosen: Sequence[Candidate]) -> str:
    """All candidates, those that trained longest first, by mean loss."""
    from psyche_core.experiments.tuning import best_of

    losses = {each.trial: each.loss for each in finished}
    lines = [f"{'steps':>6} {'loss':>8}  {'over seeds':18} {'bytes a step':>12}  candidate"]
    shown: set[int] = set()
    for rung in range(len(plan.lengths) - 1, -1, -1):
        for number in best_of(losses, rung):
            if number in shown:
                continue
            shown.add(number)
            same = [each for each in finished if (each.trial.rung, each.trial.candidate) == (rung, number)]
            values = [each.loss for each in same]
            mean = sum(values) / len(values)
            spread = f"{min(values):.4f} to {max(values):.4f}" if len(values) > 1 else ""
            size = sum(each.bytes_per_step for each in same) / len(same)
            loss = f"{mean:8.4f}" if mean < float("inf") else "diverged"
            lines.append(f"{plan.lengths[rung]:6} {loss}  {spread:18} {round(size):12,}  {chosen[number].title}")
    return "\n".join(lines)
