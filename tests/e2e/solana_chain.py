"""A local chain in processes of its own, commands given to it as people give them, and runs small enough for tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from fork_server import shared
from live_run import TINY
from psyche_core.telemetry.events import Event
from psyche_core.telemetry.sinks import from_json

EVERYBODY = "1" * 32
"""Who may join when anybody may."""


class Chain:
    """Processes of a local chain with two RPC providers, at ports it chooses itself, and the commands given to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start("chain", "solana", "localnet", "--rpc-port", 0, "--providers", 2, "--allow-faults", "--slot-ms", 100)
        # The whole line: a port that is "already in use" is not ready.
        self.until(lambda: "ready" in (folder / "chain.log").read_text().splitlines())
        self.providers = tuple(re.findall(r"^RPC (\S+)", (folder / "chain.log").read_text(), flags=re.MULTILINE))
        assert len(self.providers) == 2, self.end_of("chain")

    def start(self, name: str, *arguments: object, inside: Sequence[object] = ()) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [*map(str, inside), sys.executable, "-m", "psyche_core", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=_environment(),
            )

    def ask(self, *arguments: object, provider: int = 0) -> Any:
        """What a command answers with --json."""
        command = ["psyche_core", *map(str, arguments), "--rpc", self.providers[provider], "--json"]
        done = shared().run(command, cwd=self.folder, env=_environment(), timeout=60)
        assert done.returncode == 0, f"{arguments}: {done.stderr}\n{self.end_of('chain')}"
        return json.loads(done.stdout)

    def end_of(self, name: str) -> str:
        """Whether a process lives, and the end of its log, for people."""
        code = self.processes[name].poll()
        state = "lives" if code is None else f"ended with {code}"
        return f"--- {name} ({state})\n" + (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]

    def wallet(self, name: str) -> Path:
        """A new wallet with SOL on it."""
        path = self.folder / f"{name}.json"
        command = [sys.executable, "-m", "psyche_core", "solana", "keygen", str(path)]
        address = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=True).stdout.strip()
        self.ask("solana", "airdrop", "--address", address, "--sol", 10)
        return path

    def break_door(self, provider: int) -> None:
        """Everything it is asked fails from now on, and its websockets fall silent."""
        faults = {"http_status": 503, "websocket": "silent"}
        request = {"jsonrpc": "2.0", "id": 1, "method": "psyche_setFaults", "params": [faults]}
        assert "result" in httpx2.post(self.providers[provider], json=request, timeout=30).json()
        health = {"jsonrpc": "2.0", "id": 2, "method": "getHealth"}
        assert httpx2.post(self.providers[provider], json=health, timeout=30).status_code == 503

    def told(self, name: str) -> list[Event]:
        path = self.folder / f"{name}.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        events = [from_json(line) for line in lines if line.endswith("\n")]
        return [event for _, event in filter(None, events)]

    def until(self, met: Callable[[], bool], *, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not met():
            ended = [
                name for name, process in self.processes.items() if process.poll() or (name == "chain" and process.poll() == 0)
            ]
            assert not ended, "\n".join(map(self.end_of, ended))
            assert time.monotonic() < deadline, {name: self.told(name)[-3:] for name in self.processes}
            time.sleep(0.1)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PSYCHE_")} | {"OMP_NUM_THREADS": "1"}


def tiny_run(testnet: Path, tokens: Path, *, count: int) -> Path:
    """The run file of a local testnet's folder, with a tiny model and random tokens that members read by themselves.

    tokens: folder for them; count: how many.
    """
    model = testnet / "model" / "config.json"
    model.write_text(json.dumps(json.loads(model.read_text()) | TINY))
    tokens.mkdir()
    np.random.default_rng(0).integers(0, 1000, count, dtype="<u2").tofile(tokens / "tokens.bin")
    state = testnet / "state.toml"
    lines = [line if not line.startswith("Server = ") else f'Local = "{tokens}"' for line in state.read_text().splitlines()]
    state.write_text("\n".join(lines) + "\n")
    return state
