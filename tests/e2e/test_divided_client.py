"""A client whose model is divided among processes trains with others whose model is not; all replicas stay equal."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from live_run import THREE, LiveRun, StartRun

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(300)]

QUICK = {"total_steps": 8, "rounds_per_epoch": 4, "warmup_steps": 2, "global_batch_size_start": 6, "global_batch_size_end": 6}


def sidecars(run: LiveRun) -> list[int]:
    """Processes that run's clients have started."""
    parents = {process.pid for process in run.processes.values()}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent in parents and b"psyche_core.training.sidecar" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.fixture
def run_keys() -> Mapping[str, object]:
    return QUICK


def test_a_divided_client_trains_with_undivided_ones(live_run: StartRun) -> None:
    run = live_run()
    for name in THREE:
        divided = ("--tensor-parallelism", 2) if name == "client-2" else ()
        run.start_client(name, *divided)
    run.wait_for_steps("client-2", 1)
    ranks = sidecars(run)
    assert len(ranks) == 1
    run.wait_for_end(seconds=200)
    run.assert_kept_its_promises(steps=QUICK["total_steps"], finishers=THREE)
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks), "its processes end with it"


@pytest.mark.soak
def test_a_client_that_loses_a_process_ends_with_one_sentence(live_run: StartRun) -> None:
    run = live_run()
    for name in THREE:
        run.start_client(name, *(("--data-parallelism", 2) if name == "client-2" else ()))
    run.wait_for_steps("client-2", 1)
    (rank,) = sidecars(run)
    os.kill(rank, signal.SIGKILL)
    run.note("killed", "client-2")
    assert run.processes["client-2"].wait(timeout=100) == 1
    complaint = run.log("client-2")
    assert f"Error: rank 1 (process {rank}) was ended by SIGKILL" in complaint
    assert "Traceback" not in complaint
