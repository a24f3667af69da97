"""What people would use instead, side by side with ours: the same model, tokens, members and lines.

    .venv/bin/python -m benchmarks.peers --cache FOLDER --out runs/peers [--json] [--quick]

Members have network namespaces of their own on one bridge, with lines of so many Mbit/s in both directions. Every peer is its
real release in an environment of its own, made in --cache by pip when it is needed; then the program starts itself again through
tools/loopback.sh, where there are namespaces and no network. Each finished cell is written into --out at once; the
same command goes on where it was interrupted. What is measured how, and what is unfair to whom: docs/explanation/peers.md.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import llama
from benchmarks.options import one_of, positive, several, whole
from benchmarks.peers import cells, environments, report, task, tuning
from benchmarks.peers.lines import why_not
from benchmarks.peers.results import Results
from benchmarks.peers.systems import BASE, ENVIRONMENTS, SYSTEMS

LOOPBACK = Path(__file__).parents[2] / "tools" / "loopback.sh"
FULL: dict[str, Any] = {
    "size": "20M",
    "speeds": "10,50,100,unshaped",
    "steps": 400,
    "seconds": 900.0,
    "patience": 300.0,
    "every": 25,
    "warmup": 20,
    "fault_step": 10,
    "epoch": 120,
    "period": 25,
}
QUICK: dict[str, Any] = {
    "size": "1M",
    "speeds": "10,unshaped",
    "steps": 12,
    "seconds": 60.0,
    "patience": 60.0,
    "every": 4,
    "warmup": 4,
    "fault_step": 4,
    "epoch": 6,
    "period": 4,
}


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, with those of --quick or of a whole measurement where none is given."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a 1 M model, two speeds, few steps: does it run?")
    parser.add_argument(
        "--systems",
        type=several(one_of(SYSTEMS, "system")),
        default=",".join(SYSTEMS),
        help="some of them, separated by commas: %(default)s",
    )
    parser.add_argument("--speeds", type=several(_speed), help=f"Mbit/s or unshaped (default {FULL['speeds']})")
    parser.add_argument(
        "--faults",
        type=several(one_of((*cells.FAULTS, "none"), "fault")),
        default=",".join(cells.FAULTS),
        help="kill, join, both or none, at the last speed (%(default)s)",
    )
    parser.add_argument("--size", choices=list(llama.SIZES), help=f"of the model (default {FULL['size']})")
    parser.add_argument("--members", type=whole(1, 64), default=4)
    parser.add_argument("--sequences", type=whole(1, 1024), default=6, help="of each member in a step (%(default)s)")
    parser.add_argument("--steps", type=whole(1, 1_000_000), help=f"of a run (default {FULL['steps']})")
    parser.add_argument("--seconds", type=positive, help=f"after which a run ends before (default {FULL['seconds']:g})")
    parser.add_argument("--patience", type=positive, help="seconds without a step: stalls (default 300)")
    parser.add_argument("--every", type=whole(1, 1_000_000), help="steps between validations (default 25)")
    parser.add_argument("--warmup", type=whole(1, 1_000_000), help="steps of a rising rate (default 20)")
    parser.add_argument("--fault-step", type=whole(1, 1_000_000), help="step after which a fault happens (default 10)")
    parser.add_argument("--epoch", type=whole(1, 1_000_000), help="steps of our epochs (default 120, as in our examples)")
    parser.add_argument(
        "--period", type=whole(1, 1_000_000), help="steps between synchronisations of DiLoCo and LocalSGD (default 25)"
    )
    parser.add_argument(
        "--tune",
        action="store_true",
        help="try three rates for each system first, unshaped, and use the best; what was measured counts",
    )
    parser.add_argument("--at-seconds", type=positive, help="when the table's loss is (default: a quarter of --seconds)")
    parser.add_argument("--at-tokens", type=whole(1, 2**62), help="the same in tokens (default: half of --steps)")
    parser.add_argument(
        "--target-losses", type=several(positive), default="5.5", help="losses whose times the table says (%(default)s)"
    )
    parser.add_argument("--cache", type=Path, required=True, help="folder for the peers' environments, gigabytes; kept")
    parser.add_argument("--own-torch", action="store_true", help="torch's own systems use this environment, nothing is installed")
    parser.add_argument("--out", type=Path, required=True, help="folder for cells.jsonl, table.md and loss.png")
    parser.add_argument("--retry-failed", action="store_true", help="measure again what did not run; otherwise its reason stays")
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--inside", default=None, help=argparse.SUPPRESS)  # what could not be installed, from outside
    given = parser.parse_args(words)
    for name, value in {**FULL, **(QUICK if given.quick else {})}.items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    if given.at_seconds is None:
        given.at_seconds = given.seconds / 4
    if given.at_tokens is None:
        given.at_tokens = given.steps // 2 * given.members * given.sequences * llama.SEQUENCE
    return given


def _speed(text: str) -> float | None:
    """Mbit/s of a line, None for "unshaped"."""
    return None if text == "unshaped" else positive(text)


def speeds(text: str) -> list[float | None]:
    """Mbit/s of the lines, None for no limit. Raises argparse.ArgumentTypeError."""
    return [_speed(word) for word in text.split(",")]


def planned(given: argparse.Namespace, factors: dict[str, float]) -> list[cells.Cell]:
    """All cells but those that tune, the base first, since others are compared with it."""
    names = given.systems.split(",")
    lines = speeds(given.speeds)
    trained = [cells.Cell(name, speed, factor=factors.get(name, 1.0)) for speed in lines for name in names if name != BASE]
    base = [cells.Cell(BASE, None)] if BASE in names else []
    faults = [
        cells.Cell(name, lines[-1], fault)
        for fault in given.faults.split(",")
        if fault in cells.FAULTS
        for name in names
        if name != BASE
    ]
    return [*base, *trained, *faults]


def say(sentence: str) -> None:
    """Progress, for whoever watches."""
    print(sentence, file=sys.stderr, flush=True)


class Measurement:
    """Measures cells that are not there yet."""

    def __init__(self, given: argparse.Namespace, results: Results, setup: cells.Setup, missing: dict[str, str]) -> None:
        self._given, self._results, self._setup, self._missing = given, results, setup, missing

    def cell(self, cell: cells.Cell) -> dict[str, Any]:
        """A cell's figures, measured now or before."""
        key = cell.key
        known = self._results.cells.get(key)
        if known is not None and not (known.get("failed") and self._given.retry_failed):
            return known
        reason = self._missing.get(SYSTEMS[cell.system].environment)
        row = {"system": cell.system, "megabits": cell.megabits, "fault": cell.fault, "factor": cell.factor}
        if reason is not None:
            found: dict[str, Any] = {**row, "failed": f"not installed: {reason}"}
        else:
            say(f"{key} ...")
            try:
                found = cells.measure(cell, self._setup, say=say)
            except Exception as error:  # one system must not end the measurement of the others
                found = {**row, "failed": f"{type(error).__name__}: {error}"}
        found |= {"key": key, "load": round(os.getloadavg()[0], 2)}
        if reason is None:  # what could not be installed is tried again the next time
            self._results.add(found)
        else:
            self._results.cells[key] = found
        say(f"{key}: {_in_short(found)}")
        return found

    def tuned(self) -> dict[str, float]:
        """The best factor of each system's rate, of those that are tried on lines without a limit."""
        names = [name for name in self._given.systems.split(",") if name != BASE]
        for name in names:
            for factor in tuning.FACTORS:
                self.cell(cells.Cell(name, None, factor=factor))
        return {name: tuning.best(self._results.cells, name) for name in names}


def _in_short(found: dict[str, Any]) -> str:
    if found.get("failed"):
        return str(found["failed"])
    if found["fault"]:
        return report.verdict(found)
    return (
        f"{found.get('step_s')} s a step, {found.get('sent_per_step')} bytes sent, validation loss {found.get('validation_loss')}"
    )


def main() -> int:
    """See the module."""
    given = arguments()
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.stderr.write(f"Error: --out: the folder {given.out} cannot be made: {error.strerror}\n")
        return 2
    pythons, missing = _environments(given)
    if given.inside is None:
        command = (sys.executable, "-m", "benchmarks.peers", *sys.argv[1:], "--inside", json.dumps(missing))
        os.execve(LOOPBACK, (str(LOOPBACK), *command), {**os.environ, "PYTHON": sys.executable})

    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # members are ended on the way out
    reason = why_not()
    if reason:
        sys.stderr.write(f"Error: {reason}\n")
        return 1

    named = (
        "size",
        "members",
        "sequences",
        "steps",
        "seconds",
        "patience",
        "every",
        "warmup",
        "fault_step",
        "epoch",
        "period",
    )
    # Libraries that log to stdout when they are imported must not spoil the JSON.
    with (
        Results(given.out / "cells.jsonl", {name: getattr(given, name) for name in named}) as results,
        contextlib.redirect_stdout(sys.stderr),
        tempfile.TemporaryDirectory(prefix="peers-") as name,
    ):
        work = Path(name)
        parameters = task.prepare(
            work / "task", _config(given.size), training=llama.tokens("training"), validation=llama.tokens("validation")
        )
        setup = cells.Setup(
            task_folder=work / "task",
            work=work,
            members=given.members,
            sequences=given.sequences,
            sequence_length=llama.SEQUENCE,
            steps=given.steps,
            seconds=given.seconds,
            patience=given.patience,
            warmup=given.warmup,
            every=given.every,
            fault_step=given.fault_step,
            epoch=given.epoch,
            period=given.period,
            pythons=pythons,
        )
        measurement = Measurement(given, results, setup, missing)
        factors = measurement.tuned() if given.tune else {}
        for cell in planned(given, factors):
            measurement.cell(cell)
    _report(given, results.cells, parameters=parameters, factors=factors)
    return 0


def _config(size: str) -> dict[str, Any]:
    base: dict[str, Any] = json.loads((llama.EXAMPLE / "model" / "config.json").read_text())
    shape = llama.SIZES[size]
    heads = shape.width // 32
    return base | {
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
    }


def _environments(given: argparse.Namespace) -> tuple[dict[str, Path], dict[str, str]]:
    """Interpreters by environment, and why others are not there. Inside the namespaces nothing is installed."""
    pythons: dict[str, Path] = {}
    missing: dict[str, str] = json.loads(given.inside or "{}")
    for name in dict.fromkeys(SYSTEMS[system].environment for system in given.systems.split(",")):
        if name == "torch" and given.own_torch:
            pythons[name] = Path(sys.executable)
        elif name and name not in missing:
            try:
                pythons[name] = environments.python_of(name, ENVIRONMENTS[name], cache=given.cache.absolute(), say=say)
            except environments.UnavailableError as error:
                missing[name] = str(error)
                say(f"{name}: not installed: {error}")
    return pythons, missing


def _versions(given: argparse.Namespace, name: str) -> dict[str, str]:
    """What is installed in one of ENVIRONMENTS; {} if it was not made."""
    if name == "torch" and given.own_torch:
        return {word: importlib.metadata.version(word) for word in ("torch", "transformers", "numpy")}
    return environments.versions(name, ENVIRONMENTS[name], cache=given.cache)


def _report(given: argparse.Namespace, found: dict[str, dict[str, Any]], *, parameters: int, factors: dict[str, float]) -> None:
    losses = [float(word) for word in given.target_losses.split(",")]
    batch_tokens = given.members * given.sequences * llama.SEQUENCE
    rows = report.rows(found, seconds=given.at_seconds, tokens=given.at_tokens, losses=losses)
    parts = [
        report.table(rows, seconds=given.at_seconds, steps=given.at_tokens / batch_tokens, losses=losses),
        tuning.table(found),
        report.fault_table(found),
    ]
    text = "\n\n".join(part for part in parts if part)
    (given.out / "table.md").write_text(text + "\n")
    report.figure(found, given.out / "loss.png")
    if not given.json:
        print(text)
        return
    document = {
        "parameters": parameters,
        "members": given.members,
        "batch_tokens": batch_tokens,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _versions(given, name) for name in ENVIRONMENTS},
        "torch": importlib.metadata.version("torch"),
        "rate_factors": factors,
        "at_seconds": given.at_seconds,
        "at_tokens": given.at_tokens,
        "target_losses": losses,
        "rows": rows,
        "faults": [cell for cell in found.values() if cell["fault"]],
    }
    print(json.dumps(document))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: what is finished is in cells.jsonl of --out; the same command goes on from there\n")
        sys.exit(130)
