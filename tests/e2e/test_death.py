"""A client is killed in the middle of a run: the others go on, stay equal, and nobody's accepted work is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.slow, pytest.mark.timeout(300)]


@contextmanager
def program(folder: Path, name: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A psyche process whose events go to `folder/name.jsonl`; killed at the end whatever happens."""
    words = [
        sys.executable,
        "-m",
        "psyche_core",
        *map(str, arguments),
        "--logs",
        "none",
        "--events-file",
        folder / f"{name}.jsonl",
    ]
    with (folder / f"{name}.log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log, cwd=folder) as process:
        try:
            yield process
        finally:
            process.kill()


def told(folder: Path, name: str, event: str) -> list[dict[str, Any]]:
    path = folder / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [fields for line in lines if line.endswith("}") and (fields := json.loads(line))["event"] == event]


def wait_for(found: Callable[[], object], process: subprocess.Popen[bytes], *, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert process.poll() is None, "the process ended early"
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_the_others_go_on_when_a_client_is_killed(local_testnet: Callable[..., Path], free_port: Callable[[], int]) -> None:
    config = local_testnet(
        total_steps=16,
        rounds_per_epoch=8,
        warmup_steps=2,
        max_round_train_time=6,
        waiting_for_members_extra_time=4,  # three are enough to start, and the fourth is not far behind
    )
    state = config / "state.toml"
    folder = config.parents[1]
    port = free_port()
    names = [f"client-{number}" for number in range(4)]
    with ExitStack() as stack:
        server = stack.enter_context(
            program(
                folder, "server", "server", "run", "--state", state, "--data-config", config / "data.toml", "--server-port", port
            )
        )
        wait_for(lambda: told(folder, "server", "started"), server)
        train = ("client", "train", "--run-id", "local-testnet", "--server-addr", f"127.0.0.1:{port}", "--torch-threads", 1)
        clients = [stack.enter_context(program(folder, name, *train)) for name in names]
        wait_for(lambda: len(told(folder, names[1], "step_trained")) >= 3, clients[1])
        clients[1].send_signal(signal.SIGKILL)
        survivors = [(name, client) for name, client in zip(names, clients, strict=True) if name != names[1]]
        for name, client in survivors:
            assert client.wait(timeout=200) == 0, (folder / f"{name}.log").read_text()

    digests = [[event["sha256"] for event in told(folder, name, "epoch_digest")] for name, _ in survivors]
    assert len(digests[0]) == 2
    assert digests[0] == digests[1] == digests[2]
    for name, _ in survivors:
        applied = told(folder, name, "step_applied")
        assert [event["step"] for event in applied] == list(range(1, 17))
        short = [event for event in applied if event["accepted"] < event["trained"]]
        assert 1 <= len(short) <= 3, "only the rounds around the death lack a share"
        assert all(event["trained"] - event["accepted"] == 1 for event in short)
