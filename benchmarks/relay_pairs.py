"""Which pairs of routers connect directly, how soon, and what a relayed path costs a training step.

    tools/loopback.sh .venv/bin/python -m benchmarks.relay_pairs --json

Members and a run of three clients live in the NAT laboratory of the tests (network namespaces; nothing leaves the machine). The
step ratio is the median time between steps of the demo's model with every path relayed (all routers symmetric), divided by the
same with every path direct (port-restricted routers). `benchmarks.relay` runs this module and prints its figures among its own.
Where there can be no laboratory it ends with a sentence and exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from psyche_core.telemetry.events import PeerPaths, Started, StepTrained
from psyche_core.telemetry.sinks import from_json
from psyche_core.wire.signing import SecretKey
from tests.nat.lab import KINDS, Host, Lab, missing
from tests.nat.meeting import Meeting, pair_table

ROOT = Path(__file__).parents[1]
STEPS = 60
SKIPPED_STEPS = 20
"""Steps at the start that are not counted: the first connections are made then."""

WAIT_SECONDS = 240.0


def figures(*, turns: int = 1) -> dict[str, Any]:
    """`pairs` and `training_step_ratio_relayed_over_direct`. Raises RuntimeError where there can be no laboratory.

    If some pair does not meet in time, stderr says which, and its row says what was there.
    """
    why_not = missing()
    if why_not:
        raise RuntimeError(why_not)

    direct, relayed = [], []
    for _ in range(turns):  # in turn, so that a change of the machine's load meets both
        direct.append(step_seconds("port", "direct"))
        relayed.append(step_seconds("sym", "relayed"))
    ratio = statistics.median(relayed) / statistics.median(direct)
    return {
        "pairs": pairs(),
        "step_seconds_direct": round(statistics.median(direct), 4),
        "step_seconds_relayed": round(statistics.median(relayed), 4),
        "training_step_ratio_relayed_over_direct": round(ratio, 3),
    }


def pairs() -> dict[str, dict[str, object]]:
    """`{"port-port": {"direct": true, "ms": …}, …}`: milliseconds from the peer's address to the direct path."""
    with Lab() as lab, tempfile.TemporaryDirectory() as folder, Meeting(lab, Path(folder)) as meeting:
        for kind in KINDS:
            meeting.join(lab.host(kind, kind))
            meeting.join(lab.host(kind, f"{kind}2"))
        try:
            meeting.until_met(seconds=120)
        except AssertionError as error:  # a busy machine may lose a connection for long
            sys.stderr.write(f"not every pair has met: {error}\n")
        return pair_table(meeting)


def step_seconds(kind: str, path: str) -> float:
    """Median seconds between steps of a run of three clients behind routers of a kind."""
    with Lab() as lab, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "config"
        shutil.copytree(ROOT / "examples" / "local_testnet", config)
        _change(config / "state.toml", total_steps=STEPS, rounds_per_epoch=STEPS, address=lab.relay.address)
        _start(lab.relay, folder, "server", *_server_words(config, lab.relay.address))
        (started,) = _wait_for(folder, "server", Started)
        for number in range(3):
            home = lab.behind(kind, f"client-{number}")
            key = folder / f"{home.name}.key"
            SecretKey.generate().save(key)
            train = ("client", "train", "--run-id", "local-testnet", "--server-addr", started.address, "-i", str(key))
            _start(home, folder, home.name, *train, "--base", str(config), "--torch-threads", "1")
        _wait_for(folder, "client-0", StepTrained, at_least=STEPS)
        told = [event for _, event in _events(folder, "client-0") if isinstance(event, PeerPaths)]
        kinds = {each.path for each in told[-1].peers}
        if kinds != {path}:
            message = f"expected {path} paths behind routers of the kind {kind}, got {kinds}"
            raise RuntimeError(message)
        moments = [moment for moment, event in _events(folder, "client-0") if isinstance(event, StepTrained)][SKIPPED_STEPS:]
    return statistics.median(later - earlier for earlier, later in pairwise(moments))


def _change(state: Path, *, total_steps: int, rounds_per_epoch: int, address: str) -> None:
    lines = []
    for line in state.read_text().splitlines():
        word = line.partition("=")[0].strip()
        values = {"total_steps": total_steps, "rounds_per_epoch": rounds_per_epoch, "Server": f'"{address}:20001"'}
        lines.append(f"{word} = {values[word]}" if word in values else line)
    state.write_text("\n".join(lines) + "\n")


def _server_words(config: Path, address: str) -> tuple[str, ...]:
    files = ("--state", str(config / "state.toml"), "--data-config", str(config / "data.toml"))
    return ("server", "run", *files, "--host", address, "--server-port", "20000", "--with-relay")


def _start(host: Host, folder: Path, name: str, *words: str) -> subprocess.Popen[str]:
    command = (sys.executable, "-m", "psyche_core", *words, "--logs", "none", "--events-file", str(folder / f"{name}.jsonl"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return host.start(*command, stdout=subprocess.DEVNULL, cwd=str(ROOT), env=environment)


def _events(folder: Path, name: str) -> Iterator[tuple[float, Any]]:
    file = folder / f"{name}.jsonl"
    for line in file.read_text().splitlines() if file.exists() else ():
        parsed = from_json(line)
        if parsed is not None:
            yield parsed


def _wait_for(folder: Path, name: str, kind: type[Any], *, at_least: int = 1) -> list[Any]:
    end = time.monotonic() + WAIT_SECONDS
    while True:
        found = [event for _, event in _events(folder, name) if isinstance(event, kind)]
        if len(found) >= at_least:
            return found
        if time.monotonic() > end:
            message = f"{name} told of {len(found)} {kind.__name__} in {WAIT_SECONDS:g} s, expected {at_least}"
            raise RuntimeError(message)
        time.sleep(0.2)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1, help="runs of each kind; the median counts")
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    given = parser.parse_args()
    try:
        measured = figures(turns=given.turns)
    except RuntimeError as error:
        sys.exit(f"Error: {error}")
    sys.stdout.write(json.dumps(measured, indent=None if given.json else 1) + "\n")


if __name__ == "__main__":
    main()
