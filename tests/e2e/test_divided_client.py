"""A client whose model is divided among processes trains with others whose model is not; all replicas stay equal."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from live_run import THREE, LiveRun, StartRun
from psyche_core.telemetry.events import StepApplied

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(600)]

QUICK = {
    "total_steps": 8,
    "rounds_per_epoch": 4,
    "warmup_steps": 2,
    "global_batch_size_start": 6,
    "global_batch_size_end": 6,
    # A rank is a process that imports torch before it has its part of the model. On a busy machine that takes minutes, and who is
    # not ready in time, or has not trained, is left behind. Both end early when all are done.
    "warmup_time": 240,
    "max_round_train_time": 120,
}


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
    run.note("disturb", "client-2")  # two processes on a busy machine are slower than one, and who is slow is left behind
    (rank,) = run.wait(lambda: sidecars(run))
    handle = os.pidfd_open(rank)
    run.wait_for_end()
    assert any(told.accepted == len(THREE) for told in run.told("client-1", StepApplied)), "its results are among the accepted"
    run.assert_kept_its_promises(steps=QUICK["total_steps"], finishers=THREE)
    assert select.select([handle], [], [], 60)[0], "its processes end with it"
    os.close(handle)


@pytest.mark.soak  # two processes more than other runs, and two imports of torch in its middle: minutes if others work
def test_divided_clients_leave_join_and_share_the_model(live_run: StartRun) -> None:
    """Their optimizers' parts are on their ranks; a newcomer's parts get the model of members one of which is divided, too."""
    run = live_run(total_steps=16)
    for name in THREE:
        run.start_client(name, *(("--data-parallelism", 2) if name == "client-2" else ()))
    run.wait_for_steps("client-2", 2)
    run.signal("client-1", signal.SIGINT)
    assert run.processes["client-1"].wait(timeout=100) == 0, run.log("client-1")
    joining = time.time()
    run.start_client("client-4", "--tensor-parallelism", 2)
    run.wait_for_steps("client-4", 2, after=joining)
    run.wait_for_end()
    metrics = run.assert_kept_its_promises(steps=16, finishers=("client-2", "client-3", "client-4"))
    assert metrics.resyncs >= 1, "the newcomer got the others' model"


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
