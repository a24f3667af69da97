"""`psyche testnet start` that kills its own clients, and a testnet that is killed itself."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LocalTestnet
from tests.e2e.conftest import Program, Started

pytestmark = [pytest.mark.e2e, pytest.mark.quic]

CLIENTS = 3
"""Two of them are always there, which is what the run needs (min_clients), and a quorum of three witnesses."""


def came_back(folder: Path) -> int:
    """How many processes of a testnet's clients, each one's first left out, took part: trained, or applied a step.

    One that finds its last checkpoint and the journal beside it need not take the others' model: a resync is not the only way.
    """
    found = 0
    for file in folder.glob("client-*.jsonl"):
        processes: list[set[str]] = []
        for line in file.read_text().splitlines():
            event = json.loads(line)["event"]
            if event == "started":
                processes.append(set())
            processes[-1].add(event)
        found += sum(bool(told & {"step_trained", "step_applied"}) for told in processes[1:])
    return found


@pytest.fixture
def killing_testnet(
    start: Started, local_testnet: LocalTestnet, free_port: Callable[[], int], tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    """A function that runs a testnet, a client killed every few seconds for a while, and returns its report."""

    def play(*, steps: int, interval: int, seconds: int, kills: int, seed: int, time_limit: int) -> dict[str, Any]:
        config = local_testnet(
            total_steps=steps,
            rounds_per_epoch=40,
            warmup_steps=2,
            max_round_train_time=5,
            cooldown_time=1,
        )
        process = start(
            *("testnet", "start", "--num-clients", CLIENTS, "--config-path", config, "--server-port", free_port()),
            *("--out", tmp_path / "out", "--logs", "console", "--time-limit", time_limit, "--require-steps", steps),
            *("--random-kill-num", 1, "--random-kill-interval", interval, "--random-kill-seconds", seconds),
            *("--random-kill-seed", seed),
        )
        printed, complained = process.communicate(timeout=time_limit + 60)
        assert process.returncode == 0, complained + printed
        assert "Traceback" not in complained
        assert "identical, bit for bit" in printed
        report: dict[str, Any] = json.loads((tmp_path / "out" / "report.json").read_text())
        print({name: report.get(name) for name in ("steps", "epochs", "identical", "faults", "wall_seconds")}, "seed", seed)
        assert (report["steps"], report["identical"]) == (steps, True)
        assert report["faults"]["kills"] >= kills
        assert came_back(tmp_path / "out" / "events") >= report["faults"]["kills"] - 2, "but for a first step or a last"
        return report

    return play


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_clients_killed_at_random_for_half_a_minute(killing_testnet: Callable[..., dict[str, Any]]) -> None:
    # Nobody is killed in a run's last seconds, and a fast machine's 60 steps are all among these.
    killing_testnet(steps=140, interval=2, seconds=20, kills=1, seed=3, time_limit=330)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1300)
def test_clients_killed_at_random_for_three_minutes(killing_testnet: Callable[..., dict[str, Any]]) -> None:
    killing_testnet(steps=160, interval=5, seconds=150, kills=6, seed=int(os.environ.get("SEED", "1")), time_limit=1200)


def children_of(parent: int) -> list[int]:
    """Ids of the live child processes of one process."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended while we looked
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(folder.name))
    return found


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


@pytest.mark.timeout(120)
def test_a_testnet_killed_by_force_leaves_no_process(
    start: Started, local_testnet: LocalTestnet, free_port: Callable[[], int], tmp_path: Path
) -> None:
    process: Program = start(
        *("testnet", "start", "--num-clients", 2, "--config-path", local_testnet(init_min_clients=2)),
        *("--server-port", free_port()),
        *("--out", tmp_path / "out", "--logs", "none"),
    )
    deadline = time.monotonic() + 60
    while len(children := children_of(process.pid)) < 4:  # a server, two clients, and what these are forked from
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(map(alive, children)):
        assert time.monotonic() < deadline, "all were to end with the testnet"
        time.sleep(0.05)
