"""Real processes: a server or client is forked, see fork_server.py, unless a test asks for one that is started from nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fork_server import ForkedPopen, ForkServer
from live_run import fork_server, live_run, run_keys
from tests.conftest import LocalTestnet

__all__ = ["fork_server", "live_run", "run_keys"]  # fixtures

Program = subprocess.Popen[str] | ForkedPopen
Started = Callable[..., Program]

SHORT = {"total_steps": 12, "rounds_per_epoch": 4, "warmup_steps": 2, "global_batch_size_start": 6, "global_batch_size_end": 6}
"""A run of three epochs that takes seconds."""


@pytest.fixture
def short_run(local_testnet: LocalTestnet) -> Path:
    """Folder of a run like the demo, but short."""
    return local_testnet(**SHORT)


@pytest.fixture
def run_of_two(local_testnet: LocalTestnet) -> Path:
    """Folder of one for two members."""
    return local_testnet(**SHORT, init_min_clients=2)


@pytest.fixture
def start(tmp_path: Path, fork_server: ForkServer) -> Iterator[Started]:
    """A function that starts `psyche ARGUMENTS` in tmp_path; whatever still runs is stopped at the end.

    fresh: a process that is started from nothing, also for a client or server.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PSYCHE_")}
    environment["OMP_NUM_THREADS"] = "1"
    running: list[Program] = []

    def start_one(*arguments: object, fresh: bool = False) -> Program:
        words = [str(argument) for argument in arguments]
        process: Program
        if words[0] in ("client", "server") and not fresh:
            process = ForkedPopen(fork_server, ["psyche_core", *words], cwd=tmp_path, env=environment, text=True)
        else:
            process = subprocess.Popen(
                [sys.executable, "-m", "psyche_core", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
                env=environment,
            )
        running.append(process)
        return process

    yield start_one
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
        if process.stdout is not None and not process.stdout.closed:
            process.communicate(timeout=20)
