"""Play fresh seeds in the simulator and keep count of how many the present engine has passed.

    python tools/simulated_seeds.py                      say how many seeds this engine has passed
    python tools/simulated_seeds.py --runs 10000         play the next 10,000 (all faults, eight members) and write them down
    python tools/simulated_seeds.py --runs 10000 --compiled
                                                         the same in about half the time, on the engine compiled with mypyc
    python tools/simulated_seeds.py --goal 100000 --compiled
                                                         play as many as this engine still lacks of 100,000
    python tools/simulated_seeds.py --compare 500        play the next 500 on both engines and compare; write nothing down

The count is in docs/reference/simulated-seeds.csv, a row for each thousand. A row counts for the engine that made it: the digest
is over the code, without docstrings and comments, of all modules that a simulated run uses and that decide something. So a
hundred thousand seeds may be played in several sittings, and a change of the engine begins a new count, unless every run
is played as before (EARLIER_ENGINES). No seed is played twice: each call begins where the last row of the file ends.

The column `ended_early` counts the runs that came to a state for which the protocol promises nothing: they end there, unbroken.
The column `compiled` says whether the seeds were played on the compiled engine (`compiled_engine.py` says how it is made); empty
means no. The digest is over the source in both cases. A run that breaks on the compiled engine is played again on the source; if
it does not break there, the engines differ, nothing is written down, and the call fails.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import hashlib
import importlib
import json
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

sys.path.insert(0, str(Path(__file__).resolve().parent))  # when a test loads this file
from compiled_engine import PLACE, CompiledEngineError, built, code_of, in_engine
from seed_player import Played, PlayerError, Players

from psyche_core.simulator.parallel_runs import FailureReport, RunOptions, RunTotals, one_run, run_seeds
from psyche_core.simulator.script import KINDS, to_plain

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "reference" / "simulated-seeds.csv"
COLUMNS = ("date", "engine", "python", "first", "last", "runs", "broken", "runs_per_minute", "compiled", "ended_early")
_LATER_STRAGGLERS = "no-honest-member-dropped also excuses a member whose late rounds add up to F16's limit (seed 10330699)"
_SENTENCES = (
    "the sentences with which a client ends say what helps, and a stored model may be in a bucket where the Hub's was and vice "
    "versa, which no simulated member does; fingerprints of 100 runs are equal"
)
_ONE_CHEAT_MORE = "there is one cheat more, which no seed draws; fingerprints of 100 runs are equal"
_PAY_AFTER_A_CHECK = (
    "runs that check shares pay newcomers later, and no seed checks any; ballots and digests are counted once, not for each slot "
    "and message; fingerprints of 100 runs are equal"
)
_NEIGHBOURS = (
    "the action that names the members carries their epoch's seed, which no simulated transport uses, and there are two cheats "
    "more, which no seed draws; fingerprints of 100 runs are equal"
)
EARLIER_ENGINES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "83c93cdbbf9759a6": {"190cb9b3e6d3d9c9": _LATER_STRAGGLERS},
        "efdb93bb55496eee": {
            "83c93cdbbf9759a6": _SENTENCES,
            "190cb9b3e6d3d9c9": f"{_LATER_STRAGGLERS}; then as the one after it",
        },
        "18508d6b10f2a509": {
            "efdb93bb55496eee": _ONE_CHEAT_MORE,
            "83c93cdbbf9759a6": f"{_SENTENCES}; {_ONE_CHEAT_MORE}",
            "190cb9b3e6d3d9c9": f"{_LATER_STRAGGLERS}; then as the ones after it",
        },
        "a79c378a9a2f6746": {
            "18508d6b10f2a509": _PAY_AFTER_A_CHECK,
            "efdb93bb55496eee": f"{_ONE_CHEAT_MORE}; {_PAY_AFTER_A_CHECK}",
            "83c93cdbbf9759a6": f"{_SENTENCES}; then as the ones after it",
            "190cb9b3e6d3d9c9": f"{_LATER_STRAGGLERS}; then as the ones after it",
        },
        "12be4fafe60226df": {
            "a79c378a9a2f6746": _NEIGHBOURS,
            "18508d6b10f2a509": f"{_PAY_AFTER_A_CHECK}; {_NEIGHBOURS}",
            "efdb93bb55496eee": f"{_ONE_CHEAT_MORE}; then as the ones after it",
            "83c93cdbbf9759a6": f"{_SENTENCES}; then as the ones after it",
            "190cb9b3e6d3d9c9": f"{_LATER_STRAGGLERS}; then as the ones after it",
        },
    }
)
"""Engines whose seeds count for a later one, with the reason: the later engine plays every run as the earlier one did and differs
only in words, or in a check that fails in fewer cases. So what passed passes. A thousand with a broken seed does not count."""

FIRST_SEED = 10_000_000
CHUNK = 1_000


def engine_digest() -> str:
    """First 16 hex digits of the SHA-256 over the engine's code."""
    importlib.import_module("psyche_core.simulator.world")
    digest = hashlib.sha256()
    for name in sorted(sys.modules):
        if in_engine(name):
            source = sys.modules[name].__file__
            assert source is not None
            digest.update(f"{name}\n{code_of(Path(source).read_text(encoding='utf-8'))}\n".encode())
    return digest.hexdigest()[:16]


def rows() -> list[dict[str, str]]:
    """The record so far."""
    if not RECORD.exists():
        return []
    with RECORD.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def passed(engine: str) -> tuple[int, int]:
    """Number of seeds that this engine has played, and how many of them broke an invariant. EARLIER_ENGINES count, too."""
    earlier = EARLIER_ENGINES.get(engine, {})
    own = [row for row in rows() if row["engine"] == engine or (row["engine"] in earlier and row["broken"] == "0")]
    return sum(int(row["runs"]) for row in own), sum(int(row["broken"]) for row in own)


def _played(seeds: range, *, jobs: int, compiled: Path | None) -> RunTotals:
    if compiled is not None:
        return _played_compiled(seeds, jobs=jobs, folder=compiled)

    tally = RunTotals()
    for tally in run_seeds(RunOptions(kinds=KINDS), seeds, jobs=jobs):
        _progress(tally.runs, seeds)
    return tally


def _played_compiled(seeds: range, *, jobs: int, folder: Path) -> RunTotals:
    tally = RunTotals()
    started = time.monotonic()
    with Players(jobs, compiled=folder) as players:
        for reply in players.play(seeds):
            for run in reply["runs"]:
                tally.runs += 1
                tally.steps += run["steps"]
                tally.events += run["events"]
                if run["ended_early"]:
                    tally.without_guarantee.append((run["seed"], run["ended_early"]))
                if run["broken"] is not None:
                    tally.failures.append(_found_again(run["seed"], run["broken"]))
            _progress(tally.runs, seeds)
    tally.seconds = time.monotonic() - started
    return tally


def _found_again(seed: int, broken: str) -> FailureReport:
    """What the source says of a seed that broke on the compiled engine."""
    _, found, _ = one_run(RunOptions(kinds=KINDS), seed)
    if found is None:
        message = f"seed {seed} breaks on the compiled engine ({broken}) and not on the source; play without --compiled"
        raise CompiledEngineError(message)

    return found


def _progress(runs: int, seeds: range) -> None:
    if sys.stderr.isatty():
        print(f"  {runs} of {len(seeds)}", end="\r", file=sys.stderr)


def _write_down(engine: str, first: int, tally: RunTotals, *, compiled: bool) -> None:
    known = rows()
    if not known or COLUMNS[-1] not in known[0]:
        _rewrite(known)
    with RECORD.open("a", newline="", encoding="utf-8") as file:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        last, broken = first + tally.runs - 1, len(tally.failures)
        row = (today, engine, platform.python_version(), first, last, tally.runs, broken, round(tally.runs_per_minute))
        csv.writer(file, lineterminator="\n").writerow((*row, "yes" if compiled else "no", len(tally.without_guarantee)))


def _rewrite(known: list[dict[str, str]]) -> None:
    """Write the record with the present columns; older rows get empty fields for those they lack."""
    with RECORD.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(known)


def _tell(found: FailureReport) -> None:
    print(f"BROKEN {found.invariant}, seed {found.seed}: {found.sentence}\n  {json.dumps(to_plain(found.script))}", flush=True)


def _compare(seeds: range, *, jobs: int, folder: Path) -> int:
    """Play the seeds on both engines, say how many runs are equal and what they cost; return the number of different ones."""
    runs: list[dict[int, Played]] = []
    for title, compiled in (("compiled", folder), ("interpreted", None)):
        found: dict[int, Played] = {}
        cpu, started = 0.0, time.monotonic()
        with Players(jobs, compiled=compiled, fingerprints=True) as players:
            for reply in players.play(seeds):
                cpu += reply["cpu_seconds"]
                found.update((run["seed"], run) for run in reply["runs"])
                _progress(len(found), seeds)
        wall = time.monotonic() - started
        print(
            f"{title}: {cpu / len(seeds) / 2:.3f} s of processor time a run (each played twice), {wall:.0f} s in all", flush=True
        )
        runs.append(found)

    different = [seed for seed in seeds if runs[0][seed] != runs[1][seed]]
    for seed in different:
        print(f"DIFFERENT {seed}:\n  compiled    {json.dumps(runs[0][seed])}\n  interpreted {json.dumps(runs[1][seed])}")
    broken = sum(run["broken"] is not None for run in runs[1].values())
    print(f"{seeds[0]} to {seeds[-1]}: {len(seeds) - len(different)} of {len(seeds)} runs are equal; {broken} broken")
    return len(different)


def main() -> int:
    """Return 1 if a run broke an invariant, or if the engines differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--runs", type=int, default=0, help="fresh seeds to play")
    what.add_argument("--goal", type=int, default=0, metavar="N", help="play fresh seeds until this engine has played N")
    what.add_argument("--compare", type=int, default=0, metavar="N", help="fresh seeds to play on both engines")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--compiled", action="store_true", help="play on the compiled engine")
    parser.add_argument("--place", type=Path, default=PLACE, help="folder for compiled engines (default: %(default)s)")
    asked = parser.parse_args()
    runs = asked.runs
    if asked.goal:
        played, broken = passed(engine_digest())
        if broken:
            print(f"Error: {broken} of the {played} seeds that this engine played broke; mend it first", file=sys.stderr)
            return 1
        runs = max(0, asked.goal - played)
    try:
        folder = built(asked.place, jobs=asked.jobs) if (asked.compiled and runs) or asked.compare else None
        if folder is not None and asked.compare:
            first = _next_seed()
            return 1 if _compare(range(first, first + asked.compare), jobs=asked.jobs, folder=folder) else 0
        return _play(runs, jobs=asked.jobs, compiled=folder)
    except (CompiledEngineError, PlayerError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1


def _next_seed() -> int:
    return max((int(row["last"]) + 1 for row in rows()), default=FIRST_SEED)


def _play(runs: int, *, jobs: int, compiled: Path | None) -> int:
    engine, broken = engine_digest(), 0
    for start in range(0, runs, CHUNK):
        first = _next_seed()
        tally = _played(range(first, first + min(CHUNK, runs - start)), jobs=jobs, compiled=compiled)
        _write_down(engine, first, tally, compiled=compiled is not None)
        for found in tally.failures:
            _tell(found)
        for seed, sentence in tally.without_guarantee:
            print(f"ENDED EARLY, seed {seed}: {sentence}", flush=True)
        broken += len(tally.failures)
        pace = f"{tally.runs_per_minute:.0f} a minute"
        print(f"{first} to {first + tally.runs - 1}: {len(tally.failures)} broken, {pace}", flush=True)

    all_runs, all_broken = passed(engine)
    print(f"engine {engine}: {all_runs} seeds played, {all_broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
