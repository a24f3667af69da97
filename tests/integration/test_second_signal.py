"""A client that is asked to leave twice: the second signal ends it in the middle of its last save, and costs that one only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from psyche_core.hookspecs import GROUP
from psyche_core.storage.checkpoint_names import checkpoints
from psyche_core.telemetry.events import CheckpointSaved, Ended, Event, Leaving, StepApplied
from psyche_core.telemetry.sinks import from_json
from psyche_core.testing.tiny_models import LLAMA
from psyche_core.training.checkpoints.checkpoint import remove_leftovers
from psyche_core.training.checkpoints.journal.journal import Journal
from psyche_core.training.checkpoints.manifest import read_manifest, verify

RUN_ID = "alone"
ROUNDS = 8
"""Rounds of an epoch."""
WAIT_SECONDS = 240.0

pytestmark = pytest.mark.timeout(600)

RUN = f"""
run_id = "alone"
[config]
warmup_time = 240
cooldown_time = 1
max_round_train_time = 30
round_witness_time = 1
epoch_time = 600
rounds_per_epoch = {ROUNDS}
total_steps = 10000
init_min_clients = 1
min_clients = 1
witness_nodes = 0
global_batch_size_start = 2
global_batch_size_end = 2
global_batch_size_warmup_tokens = 0
verification_percent = 0
waiting_for_members_extra_time = 1
[model.LLM]
architecture = "SlowToSave"
data_type = "Pretraining"
max_seq_len = 16
cold_start_warmup_steps = 0
checkpoint = {{ Hub = {{ repo_id = "model" }} }}
data_location = "Dummy"
lr_schedule = {{ Constant = {{ base_lr = 5e-3, warmup_init_lr = 0.0, warmup_steps = 2 }} }}
optimizer = {{ AdamW = {{ betas = [0.9, 0.95], weight_decay = 0.1, eps = 1e-8, clip_grad_norm = 1.0 }} }}
"""

PLUGIN = '''
"""A coordinator within the client's process, and a model whose disk stands still while there is a file `slow`."""

import asyncio
import os
import time
from pathlib import Path

from psyche_core.builtin.hf_models import create_auto
from psyche_core.builtin.memory_backend import MemoryCoordinator
from psyche_core.coordinator import new_state
from psyche_core.hookspecs import BackendRegistration, ModelRegistration, hookimpl
from psyche_core.config.run_config import parse_run_file

PSYCHE_PLUGIN_API = "1.0"
kept = []


def join_alone(context):
    run = parse_run_file(Path("run.toml").read_text(), source="run.toml")
    coordinator = MemoryCoordinator(new_state(run.run_id, run.config, run.model, instance=bytes(32)))
    kept.append(asyncio.get_running_loop().create_task(coordinator.run()))
    return coordinator.backend(context.key)


def create(context):
    model = create_auto(context)
    save = model.save

    def slow(directory, *, parameters):
        save(directory, parameters=parameters)
        if Path("slow").exists():
            told = Path("half-saved.new")
            told.write_text(str(directory))
            told.rename("half-saved")
            time.sleep(600)

    model.save = slow
    return model


@hookimpl
def psyche_register_backends():
    return [BackendRegistration(name="Alone", summary="alone", create=join_alone, needs_address=False)]


@hookimpl
def psyche_register_models():
    return [ModelRegistration(name="SlowToSave", summary="slow to save", create=create)]
'''


class Client:
    """A process of `psyche client train` in a run of its own; all its files lie in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saved = folder / "saved"
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(dict(LLAMA)))
        (folder / "run.toml").write_text(RUN)
        site = folder / "site"
        info = site / "alone-1.0.dist-info"
        info.mkdir(parents=True)
        (site / "alone_plugin.py").write_text(PLUGIN)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: alone\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\nbackend.Alone = alone_plugin\nmodel.SlowToSave = alone_plugin\n")
        words = ("client", "train", "--run-id", RUN_ID, "--backend", "Alone", "--transport", "memory", "--device", "cpu")
        options = ("--checkpoint-dir", "saved", "--torch-threads", "1", "--logs", "console", "--events-file", "events.jsonl")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PSYCHE_")}
        path = os.pathsep.join(filter(None, [str(site), clean.get("PYTHONPATH", "")]))
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "psyche_core", *words, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=clean | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )

    def told(self) -> list[Event]:
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [event for _, event in filter(None, (from_json(line) for line in lines if line.endswith("\n")))]

    def until(self, met: Callable[[list[Event]], bool]) -> None:
        """Wait for something in what it tells."""
        end = time.monotonic() + WAIT_SECONDS
        while not met(self.told()):
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    started = Client(tmp_path)
    yield started
    started.process.kill()
    started.process.wait()


def mid_epoch(told: list[Event]) -> bool:
    """Whether a checkpoint is there, two rounds were applied since, and others are still to come before the next one.

    Who reads this too late, on a busy machine, waits for the next epoch: a client that is asked to leave between two epochs may
    have nothing left to save.
    """
    saved = [number for number, event in enumerate(told) if isinstance(event, CheckpointSaved)]
    return bool(saved) and 2 <= sum(isinstance(event, StepApplied) for event in told[saved[-1] :]) <= ROUNDS - 4


@pytest.mark.parametrize("second", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_second_signal_ends_the_client_at_once_and_costs_the_last_checkpoint_only(
    client: Client, second: signal.Signals
) -> None:
    client.until(mid_epoch)
    (client.folder / "slow").touch()
    client.process.send_signal(signal.SIGTERM)
    client.until(lambda told: Leaving("SIGTERM", saves=True) in told)
    client.until(lambda told: (client.folder / "half-saved").exists())
    client.process.send_signal(second)
    assert client.process.wait(timeout=WAIT_SECONDS) == -second

    told = client.told()
    assert not any(isinstance(event, Ended) for event in told)
    said = client.log()
    assert "SIGTERM: leaving the run cleanly after saving a checkpoint; a second SIGTERM ends this process at once" in said
    assert "Traceback" not in said
    assert "Error" not in said

    steps = [event.step for event in told if isinstance(event, CheckpointSaved)]
    remove_leftovers(client.saved, RUN_ID)  # as the next start does
    assert not list(client.saved.glob(".*partial*"))
    found = checkpoints(client.saved, RUN_ID)
    assert [path.name for path in found] == [f"alone-step{step}" for step in steps[-3:]]
    for path in found:
        manifest = read_manifest(path)
        assert manifest is not None
        verify(path, manifest)
    with Journal.open(client.saved, RUN_ID, instance=bytes(32), limit_bytes=2**30) as journal:
        recovered = journal.read()
    assert recovered is not None
    assert recovered.header.base_step == steps[-1]
    # A round is in the journal before it is told, and the signal may have come in between. Before that it may be in the masters
    # that are being saved: until the client attests to the next round, only this one's results are journalled.
    being_saved = Path((client.folder / "half-saved").read_text()).parent.name
    assert being_saved.startswith(tuple(f".alone-step{recovered.last_step + more}." for more in (0, 1)))
    assert recovered.last_step >= max(event.step for event in told if isinstance(event, StepApplied))
