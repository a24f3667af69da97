"""`psyche sim`: test the protocol with faults in virtual time, many seeds at once, and report which seed broke it."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from psyche_core.cli.lazy import example
from psyche_core.errors import UserError
from psyche_core.regular_files import expect_regular

if TYPE_CHECKING:
    from psyche_core.simulator.parallel_runs import FailureReport, RunOptions, RunTotals

MOST_RUNS_SHOWN = 1_000
"""With more runs than this, `--json` prints only their combined figures."""

_HELP = """Test the protocol with faults and lies, in virtual time. Its invariants are checked after every event.

Each seed is one whole run: a real coordinator and real client state machines, with a simulated network, clock, disk and model.
The seed determines everything: the run's size, its faults, every delay and every lie. A failure is printed with the seed that
reproduces it and with a fault script that was reduced as far as possible."""

HELP_OF_FAULTS = """\b
Kinds of faults:
  members   crash restart pause slow skew late leave bit-flip all-die
            empty-results failing-work slow-downlink full-disk
  network   drop duplicate reorder delay partition asymmetric
  server    server-restart owner-pause older-state slow-rpc failing-rpc
  liars     wrong-hash wrong-shape two-results three-results late-second-result
            repeated-payload garbage withhold false-statements
            false-digests false-models flood model-requests stolen-key
            old-signatures
  slow down silent-witness never-states all-ones empty-statements
            never-finished selective-finished late-finished just-in-time
            late-statement lacks-model unready-every-other
            leaves-and-returns idle-joiners"""


@click.command(
    help=f"{_HELP}\n\n{HELP_OF_FAULTS}",
    epilog=example(
        "psyche sim --seeds 0:1000 --jobs 2             a thousand runs with all kinds of faults",
        "psyche sim --seeds 4711 --trace                print the timeline of one run",
        "psyche sim --seeds random:200 --faults crash,partition",
        "psyche sim --script failure.json --trace       repeat a script that --json printed",
        note="Exit status 1 if an invariant was broken. The same seed and options always give the same run.",
    ),
)
@click.option(
    "--seeds", "seeds_text", default="0:100", show_default=True, metavar="A:B",
    help="Seeds of the runs: A:B (without B), one seed, a list 3,5,9, or random:N for N random ones, which are printed.",
)  # fmt: skip
@click.option("--clients", type=click.IntRange(1, 64), default=8, show_default=True, help="Number of members of each run.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=20, show_default=True, help="Number of steps of each run.")
@click.option(
    "--faults", "faults_text", default="all", show_default=True, metavar="KINDS",
    help="all, none, or kinds separated by commas; the seed selects some of them for each run.",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes.")
@click.option(
    "--trainer", type=click.Choice(["hash", "torch"]), default="hash", show_default=True,
    help="Model of the members: whole numbers (fast), or a tiny torch model with a real optimizer.",
)  # fmt: skip
@click.option("--script", "script_file", type=click.Path(path_type=Path), help="Run this fault script instead of seeds.")
@click.option("--trace", is_flag=True, help="Print a timeline of one run: who did what, and when.")
@click.option("--shrink/--no-shrink", default=True, show_default=True, help="Reduce the script of a failure.")
@click.option(
    "--compare",
    is_flag=True,
    help="Also run each seed without faults and lies, and print how much longer runs and steps take with them.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, for programs.")
def sim(
    seeds_text: str,
    clients: int,
    rounds: int,
    faults_text: str,
    jobs: int,
    trainer: Any,
    script_file: Path | None,
    trace: bool,
    shrink: bool,
    compare: bool,
    as_json: bool,
) -> int:
    """See `_HELP`."""
    from psyche_core.simulator.parallel_runs import RunOptions
    from psyche_core.simulator.shrink import ATTEMPTS

    if script_file is not None:
        return _play_script(_read(script_file), trace=trace, compare=compare, as_json=as_json)

    seeds, fresh = parse_seeds(seeds_text)
    run_options = RunOptions(
        clients=clients,
        rounds=rounds,
        kinds=parse_faults(faults_text),
        trainer=trainer,
        shrink=ATTEMPTS if shrink else 0,
        compare=compare,
    )
    if trace:
        if len(seeds) != 1:
            message = f"--trace shows one run; give one seed, not {len(seeds)}"
            raise UserError(message)
        return _play_script(run_options.script(seeds[0]), trace=True, compare=compare, as_json=as_json)

    if fresh:
        click.echo(f"seeds: {','.join(map(str, seeds))}", err=as_json)
    return _run_seeds(run_options, seeds, jobs=jobs, as_json=as_json)


def parse_seeds(text: str) -> tuple[list[int], bool]:
    """The seeds in the option's text, and whether they were drawn at random. Raises UserError."""
    try:
        if text.startswith("random:"):
            return [secrets.randbits(32) for _ in range(_count(int(text.removeprefix("random:"))))], True
        if ":" in text:
            first, end = map(int, text.split(":"))
            if first >= end:
                message = f"--seeds {text} contains no seed: A:B begins with A and ends before B, so B must be larger than A"
                raise UserError(message)
            return list(_natural(range(first, end))), False
        return list(_natural([int(part) for part in text.split(",")])), False
    except ValueError as error:
        message = f"--seeds must be A:B, a number, numbers separated by commas, or random:N, got {text!r}"
        raise UserError(message) from error


def _count(number: int) -> int:
    if number < 1:
        message = f"--seeds random:{number}: expected at least one seed"
        raise UserError(message)

    return number


def _natural(seeds: Sequence[int]) -> Sequence[int]:
    least = min(seeds)
    if least < 0:
        message = f"--seeds: a seed must be a whole number of at least 0, got {least}"
        raise UserError(message)
    return seeds


def parse_faults(text: str) -> tuple[str, ...]:
    """The fault kinds in the option's text. Raises UserError for an unknown one."""
    from psyche_core.config.sentences import did_you_mean
    from psyche_core.simulator.script import KINDS

    if text == "all":
        return KINDS
    if text in ("none", ""):
        return ()

    kinds = tuple(part.strip() for part in text.split(","))
    for kind in kinds:
        if kind in ("all", "none"):
            message = f"--faults {text}: {kind} cannot be combined with other kinds; leave out one or the other"
            raise UserError(message)
        if kind not in KINDS:
            message = f"{kind!r} is not a kind of fault{did_you_mean(kind, KINDS)}"
            raise UserError(message)
    return kinds


def _read(path: Path) -> Any:
    from psyche_core.simulator.script import from_json

    try:
        expect_regular(path)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        message = f"cannot read the script {path}: {reason}"
        raise UserError(message) from error
    try:
        return from_json(text)
    except UserError as error:
        message = f"{path}: {error}"
        raise UserError(message) from error


# ------------------------------------------------------------------------------------ one run


def _play_script(script: Any, *, trace: bool, compare: bool, as_json: bool) -> int:
    from psyche_core.simulator.parallel_runs import RunTotals, failure_report, run_times
    from psyche_core.simulator.world import run_script

    timeline: list[tuple[float, str, str]] | None = [] if trace else None
    result = run_script(script, timeline=timeline)
    for moment, who, what in timeline or ():
        click.echo(f"{moment:9.3f}  {who:<11} {what}", err=as_json)
    tally = RunTotals(runs=1, steps=result.steps, events=result.events)
    if result.failure is not None:
        tally.failures.append(failure_report(result.failure, original=script))
    elif result.no_guarantee:
        tally.without_guarantee.append((script.seed, result.no_guarantee))
    else:
        tally.run_times.append(run_times(script, result, compare=compare))
    if as_json:
        click.echo(json.dumps(as_figures(tally)))
    else:
        ended = f"{result.steps} steps in {result.epochs} epochs, {result.seconds:.1f} virtual seconds, mark {result.mark:016x}"
        click.echo(f"seed {script.seed}: {ended}")
        for found in tally.failures:
            click.echo(f"BROKEN {found.invariant} at {found.time:.2f} s: {found.sentence}")
        _print_without_guarantee(tally)
    return 1 if tally.failures else 0


# ------------------------------------------------------------------------------------ many runs


def as_figures(tally: RunTotals) -> dict[str, Any]:
    """The figures of a run or of many, as `--json` prints them."""
    from psyche_core.simulator.script import to_plain

    failures = [
        {
            "seed": found.seed,
            "invariant": found.invariant,
            "time": round(found.time, 3),
            "sentence": found.sentence,
            "script": to_plain(found.script),
        }
        for found in tally.failures
    ]
    rate = round(tally.runs_per_minute, 1)
    ended_early = [{"seed": seed, "sentence": sentence} for seed, sentence in tally.without_guarantee]
    return {"runs": tally.runs, "runs_per_minute": rate, **_paces(tally), "failures": failures, "ended_early": ended_early}


def _paces(tally: RunTotals) -> dict[str, Any]:
    """Virtual seconds of runs and of their median steps after the first ten: over all runs and, for few runs, of each run."""
    run_times = sorted(tally.run_times, key=lambda one: one.seed)
    over_all: dict[str, Any] = {}
    if run_times:
        over_all["step_seconds"] = round(median(one.step_seconds for one in run_times), 3)
    beside = [one.compared for one in run_times if one.compared is not None]
    if beside:
        over_all["step_ratio"] = round(median(one.step_ratio for one in beside), 3)
        over_all["time_ratio"] = round(median(one.time_ratio for one in beside), 3)
        over_all["most_time_ratio"] = round(max(one.time_ratio for one in beside), 3)
    each = []
    for one in run_times if len(run_times) <= MOST_RUNS_SHOWN else ():
        shown: dict[str, Any] = {"seed": one.seed, "seconds": round(one.seconds, 3), "step_seconds": round(one.step_seconds, 3)}
        if one.compared is not None:
            shown["step_ratio"] = round(one.compared.step_ratio, 3)
            shown["time_ratio"] = round(one.compared.time_ratio, 3)
        each.append(shown)
    return {**over_all, "by_run": each}


def _run_seeds(run_options: RunOptions, seeds: Sequence[int], *, jobs: int, as_json: bool) -> int:
    from psyche_core.simulator.parallel_runs import RunTotals, run_seeds

    tally = RunTotals()
    interrupted = False
    try:
        for current in _shown(run_seeds(run_options, seeds, jobs=jobs), len(seeds)):
            tally = current
    except KeyboardInterrupt:
        interrupted = True
        click.echo(f"interrupted after {tally.runs} of {len(seeds)} runs", err=True)

    if as_json:
        click.echo(json.dumps(as_figures(tally)))
    else:
        _print(tally, run_options)
    if tally.failures:
        return 1
    return 130 if interrupted else 0


def _shown(tallies: Iterator[RunTotals], total: int) -> Iterator[RunTotals]:
    """The same tallies, with a progress bar on a terminal."""
    if not sys.stderr.isatty():
        yield from tallies
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("runs", total=total, rate="")
        for tally in tallies:
            rate = f"{tally.runs_per_minute:.0f} runs a minute, {len(tally.failures)} broken"
            progress.update(task, completed=tally.runs, rate=rate)
            yield tally


def _print(tally: RunTotals, run_options: RunOptions) -> None:
    struck = sum(count for kind, count in tally.counts.items() if kind in run_options.kinds)
    runs = "1 run" if tally.runs == 1 else f"{tally.runs} runs"
    click.echo(
        f"{runs} in {tally.seconds:.1f} s ({tally.runs_per_minute:.0f} a minute), {tally.steps} steps trained, "
        f"{struck} faults occurred, {len(tally.failures)} runs broke an invariant"
    )
    paces = _paces(tally)
    if "step_ratio" in paces:
        click.echo(
            f"compared with the same runs without faults: steps take {paces['step_ratio']:g} times as long, runs "
            f"{paces['time_ratio']:g} times (medians), and at most {paces['most_time_ratio']:g} times"
        )
    for found in tally.failures:
        _print_failure(found, run_options)
    _print_without_guarantee(tally)


def _print_without_guarantee(tally: RunTotals) -> None:
    for seed, sentence in tally.without_guarantee:
        click.echo(f"ENDED EARLY, seed {seed}: {sentence}; the protocol promises nothing there (docs/explanation/protocol.md, 5)")


def _print_failure(found: FailureReport, run_options: RunOptions) -> None:
    from psyche_core.simulator.script import KINDS, to_plain

    kinds = "all" if run_options.kinds == KINDS else ",".join(run_options.kinds) or "none"
    options = f"--seeds {found.seed} --clients {run_options.clients} --rounds {run_options.rounds} --faults {kinds}"
    if run_options.trainer != "hash":
        options += f" --trainer {run_options.trainer}"
    click.echo(f"\nBROKEN {found.invariant} at {found.time:.2f} s of the shrunk run: {found.sentence}")
    click.echo(f"  again:  psyche sim {options} --trace")
    click.echo(f"  shrunk: {json.dumps(to_plain(found.script))}")
