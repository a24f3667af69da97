"""A run on a chain, everything by the commands people use: chain, token, run, rewards, members with wallets of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from live_run import TINY
from psyche_core.client.report import Ended, EpochDigest, Event, StepApplied, from_json

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(300)]

RUN = "paid-run"
EVERYBODY = "1" * 32
MEMBERS = ("client-1", "client-2", "client-3")
STEPS, ROUNDS = 12, 6
POINTS = 3_000_000
"""What an epoch pays."""


class Chain:
    """Processes of a local chain with two front doors, and the commands given to it."""

    def __init__(self, folder: Path, *, port: int) -> None:
        self.folder = folder
        self.doors = (f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 2}")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start("chain", "solana", "localnet", "--rpc-port", port, "--doors", 2, "--allow-faults", "--slot-ms", 100)
        self.until(lambda: b"ready" in (folder / "chain.log").read_bytes())

    def start(self, name: str, *arguments: object) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "psyche_core", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=_environment(),
            )

    def ask(self, *arguments: object, door: int = 0) -> Any:
        """What a command answers with --json."""
        command = [sys.executable, "-m", "psyche_core", *map(str, arguments), "--rpc", self.doors[door], "--json"]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=self.folder, env=_environment(), timeout=60, check=False
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return json.loads(done.stdout)

    def wallet(self, name: str) -> Path:
        """A new wallet with SOL on it."""
        path = self.folder / f"{name}.json"
        command = [sys.executable, "-m", "psyche_core", "solana", "keygen", str(path)]
        address = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=True).stdout.strip()
        self.ask("solana", "airdrop", "--address", address, "--sol", 10)
        return path

    def break_door(self, door: int) -> None:
        """Everything it is asked fails from now on, and its websockets fall silent."""
        faults = {"http_status": 503, "websocket": "silent"}
        request = {"jsonrpc": "2.0", "id": 1, "method": "psyche_setFaults", "params": [faults]}
        assert "result" in httpx2.post(self.doors[door], json=request, timeout=30).json()
        health = {"jsonrpc": "2.0", "id": 2, "method": "getHealth"}
        assert httpx2.post(self.doors[door], json=health, timeout=30).status_code == 503

    def told(self, name: str) -> list[Event]:
        path = self.folder / f"{name}.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        events = [from_json(line) for line in lines if line.endswith("\n")]
        return [event for _, event in filter(None, events)]

    def until(self, met: Callable[[], bool], *, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not met():
            ended = {name: process.returncode for name, process in self.processes.items() if process.poll()}
            assert not ended, {name: (self.folder / f"{name}.log").read_text()[-2000:] for name in ended}
            assert time.monotonic() < deadline, {name: self.told(name)[-3:] for name in MEMBERS}
            time.sleep(0.1)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PSYCHE_")} | {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def chain(tmp_path: Path, free_port) -> Iterator[Chain]:
    started = Chain(tmp_path, port=free_port())
    yield started
    started.close()


@pytest.fixture
def config(local_testnet, tmp_path: Path) -> Path:
    """A run file of a tiny model and random tokens that members read by themselves."""
    folder = local_testnet(
        total_steps=STEPS,
        rounds_per_epoch=ROUNDS,
        warmup_steps=2,
        global_batch_size_start=6,
        global_batch_size_end=6,
    )
    model = folder / "model" / "config.json"
    model.write_text(json.dumps(json.loads(model.read_text()) | TINY))
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    np.random.default_rng(0).integers(0, 1000, 200_000, dtype="<u2").tofile(tokens / "tokens.bin")
    state = folder / "state.toml"
    text = state.read_text()
    lines = [line if not line.startswith("Server = ") else f'Local = "{tokens}"' for line in text.splitlines()]
    state.write_text("\n".join(lines) + "\n")
    return state


def test_members_of_a_run_on_a_chain_are_paid_though_an_rpc_provider_dies_midway(chain: Chain, config: Path) -> None:
    owner = chain.wallet("owner")
    mint = chain.ask("solana", "create-token", "--supply", 100, "-w", owner)["mint"]
    of_run, by_owner = ("-r", RUN), ("-w", owner)
    chain.ask("run-manager", "create-run", *of_run, "-c", "test", "--treasurer-collateral-mint", mint, *by_owner)
    chain.ask("run-manager", "update-config", *of_run, "--config-path", config, *by_owner)
    chain.ask("run-manager", "set-future-epoch-rates", *of_run, "--earning-rate-total-shared", POINTS, *by_owner)
    chain.ask("run-manager", "treasurer-top-up-rewards", *of_run, "--collateral-amount", 50, *by_owner)
    chain.ask("run-manager", "join-authorization-create", "--authorizer", EVERYBODY, *by_owner)
    chain.ask("run-manager", "set-paused", *of_run, "--resume", *by_owner)

    wallets = {name: chain.wallet(name) for name in MEMBERS}
    for name, wallet in wallets.items():
        where = ("--backend", "solana", "--rpc", chain.doors[0], "--rpc-2", chain.doors[1], "-w", wallet)
        how = ("--bind-p2p-interface", "127.0.0.1", "--device", "cpu", "--torch-threads", 1, "--micro-batch-size", 4)
        log = ("--logs", "none", "--events-file", chain.folder / f"{name}.jsonl", "--cache-dir", chain.folder / f"{name}-cache")
        chain.start(name, "client", "train", "--run-id", RUN, *where, *how, *log)

    def steps(name: str) -> list[int]:
        return [event.step for event in chain.told(name) if isinstance(event, StepApplied)]

    chain.until(lambda: all(2 in steps(name) for name in MEMBERS))
    assert max(steps("client-1")) < STEPS, "the run was over before anything broke"
    chain.break_door(0)
    chain.until(lambda: all(chain.processes[name].poll() == 0 for name in MEMBERS), seconds=200)

    for name in MEMBERS:
        told = chain.told(name)
        assert steps(name) == list(range(1, STEPS + 1))
        (ended,) = [event for event in told if isinstance(event, Ended)]
        assert ended.success
    digests = {
        tuple((event.step, event.sha256) for event in chain.told(name) if isinstance(event, EpochDigest)) for name in MEMBERS
    }
    assert len(digests) == 1, "replicas are equal"

    paid = {}
    for name, wallet in wallets.items():
        paid[name] = chain.ask("run-manager", "treasurer-claim-rewards", *of_run, "-w", wallet, door=1)["units"]
    assert all(paid.values()), paid
    epochs = STEPS // ROUNDS
    assert epochs * (POINTS - len(MEMBERS)) < sum(paid.values()) <= epochs * POINTS, "all was paid but fractions"
