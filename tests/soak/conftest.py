"""Runs of real processes that are attacked for as long as it takes; small models, many steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from live_run import TINY, LiveRun

StartRun = Callable[..., LiveRun]

PACE = {
    "init_min_clients": 3,
    "min_clients": 2,
    "rounds_per_epoch": 40,
    "warmup_steps": 2,
    "global_batch_size_start": 6,
    "global_batch_size_end": 6,
    "warmup_time": 30,
    "max_round_train_time": 5,
    "cooldown_time": 1,
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def live_run(local_testnet: Callable[..., Path], free_port: Callable[[], int]) -> Iterator[StartRun]:
    """A function that makes a small run with keys of its state.toml changed and starts its server; all is killed at the end.

    server: options of the server. inside: a command that runs it. host: address it listens on.
    """
    runs: list[LiveRun] = []

    def make(
        *, server: tuple[object, ...] = (), inside: tuple[object, ...] = (), host: str = "127.0.0.1", **changes: object
    ) -> LiveRun:
        config = local_testnet(**PACE | changes)
        model = config / "model" / "config.json"
        model.write_text(json.dumps(json.loads(model.read_text()) | TINY))
        state = config / "state.toml"
        state.write_text(state.read_text().replace('Server = "127.0.0.1:', f'Server = "{host}:'))
        run = LiveRun(config, port=free_port(), host=host)
        runs.append(run)
        run.start_server(*server, inside=inside)
        return run

    yield make
    for run in runs:
        run.close()
