"""Play fresh seeds in the simulator and keep count of how many the present engine has passed.

    python tools/simulated_seeds.py                      say how many seeds this engine has passed
    python tools/simulated_seeds.py --runs 10000         play the next 10,000 (all faults, eight members) and write them down

The count is in docs/reference/simulated-seeds.csv, a row for each call. A row counts for the engine that made it: the digest is
over the code, without docstrings and comments, of all modules that a simulated run uses and that decide something. So a hundred
thousand seeds may be played in several sittings, and a change of the engine begins a new count. No seed is played twice: each
call begins where the last row of the file ends.
"""

from __future__ import annotations

import argparse
import ast
import csv
import datetime
import hashlib
import importlib
import json
import platform
import sys
from pathlib import Path

from psyche_core.simulator.parallel_runs import Finding, RunOptions, Tally, run_seeds
from psyche_core.simulator.script import KINDS, to_plain

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "reference" / "simulated-seeds.csv"
COLUMNS = ("date", "engine", "python", "first", "last", "runs", "broken", "runs_per_minute")
FIRST_SEED = 10_000_000
DECIDING = ("psyche_core.client", "psyche_core.coordinator", "psyche_core.simulator", "psyche_core.wire", "psyche_core.types")
CHUNK = 1_000


def engine_digest() -> str:
    """First 16 hex digits of the SHA-256 over the engine's code."""
    importlib.import_module("psyche_core.simulator.world")
    digest = hashlib.sha256()
    for name in sorted(sys.modules):
        if any(name == package or name.startswith(f"{package}.") for package in DECIDING):
            source = sys.modules[name].__file__
            assert source is not None
            digest.update(f"{name}\n{_code(Path(source).read_text(encoding='utf-8'))}\n".encode())
    return digest.hexdigest()[:16]


def _code(source: str) -> str:
    """A module's syntax tree as text, without docstrings and other expressions that are only text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _is_text(part)] or [ast.Pass()]  # type: ignore[attr-defined] # has a body
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def rows() -> list[dict[str, str]]:
    """The record so far."""
    if not RECORD.exists():
        return []
    with RECORD.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def passed(engine: str) -> tuple[int, int]:
    """Number of seeds that this engine has played, and how many of them broke an invariant."""
    own = [row for row in rows() if row["engine"] == engine]
    return sum(int(row["runs"]) for row in own), sum(int(row["broken"]) for row in own)


def _played(seeds: range, *, jobs: int) -> Tally:
    tally = Tally()
    for tally in run_seeds(RunOptions(kinds=KINDS), seeds, jobs=jobs):
        if sys.stderr.isatty():
            print(f"  {tally.runs} of {len(seeds)}", end="\r", file=sys.stderr)
    return tally


def _write_down(engine: str, first: int, tally: Tally) -> None:
    fresh = not RECORD.exists()
    with RECORD.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow(COLUMNS)
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        last, broken = first + tally.runs - 1, len(tally.findings)
        row = (today, engine, platform.python_version(), first, last, tally.runs, broken, round(tally.runs_per_minute))
        writer.writerow(row)


def _tell(found: Finding) -> None:
    print(f"BROKEN {found.invariant}, seed {found.seed}: {found.sentence}\n  {json.dumps(to_plain(found.script))}", flush=True)


def main() -> int:
    """Return 1 if a run broke an invariant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=0, help="fresh seeds to play")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    asked = parser.parse_args()
    engine, broken = engine_digest(), 0
    for start in range(0, asked.runs, CHUNK):
        first = max((int(row["last"]) + 1 for row in rows()), default=FIRST_SEED)
        tally = _played(range(first, first + min(CHUNK, asked.runs - start)), jobs=asked.jobs)
        _write_down(engine, first, tally)
        for found in tally.findings:
            _tell(found)
        broken += len(tally.findings)
        pace = f"{tally.runs_per_minute:.0f} a minute"
        print(f"{first} to {first + tally.runs - 1}: {len(tally.findings)} broken, {pace}", flush=True)

    runs, all_broken = passed(engine)
    print(f"engine {engine}: {runs} seeds played, {all_broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
