"""Our own run: `psyche server run`, and `psyche client train` for each member, over TCP and QUIC, with witnesses and a journal.

Validation losses are of weights that are recomputed from the first member's published journal when all is over (as `psyche audit`
does), so measuring them takes nothing from training.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.peers import task as tasks
from benchmarks.peers.lines import Lines, kill_all, start
from benchmarks.peers.progress import ClientProgress, Step, Weights
from psyche_core.telemetry.events import Started
from psyche_core.telemetry.sinks import from_json
from psyche_core.wire.signing import SecretKey
from tests.nat.lab import Host

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "local_testnet" / "state.toml"
RUN_ID = "peers"
LISTEN_SECONDS = 60.0
LEAVE_SECONDS = 60.0


def run_file(task: tasks.Task) -> dict[str, Any]:
    """The example's run with this task: its settings of DisTrO and of rounds, but the task's rate, batch, model and data.

    A result of SparseLoCo is of `inner_steps` batches: the run has so many times fewer results, and shares are so many times
    larger and have so many times longer.
    """
    state = tomllib.loads(EXAMPLE.read_text())
    inner = _inner_steps(task)
    batch, enough = task.members * task.sequences * inner, max(1, task.members - 1)
    warmup = max(1, task.warmup // inner)
    state["run_id"] = RUN_ID
    state["config"] |= {
        "cooldown_time": 1,
        "max_round_train_time": state["config"]["max_round_train_time"] * inner,
        "epoch_time": 86_400,
        "rounds_per_epoch": max(4, task.settings["epoch"] // inner),
        "total_steps": max(1, task.steps // inner),
        "init_min_clients": enough,  # of later epochs; the first begins with all, see start_meeting
        "min_clients": enough,
        "global_batch_size_start": batch,
        "global_batch_size_end": batch,
    }
    llm = state["model"]["LLM"]
    llm["max_seq_len"] = task.sequence_length
    llm["checkpoint"] = {"Hub": {"repo_id": "model"}}
    llm["data_location"] = {"Local": {"location": "training", "shuffle": {"Seeded": [0] * 32}}}
    llm["lr_schedule"] = {"Constant": {"base_lr": task.rate, "warmup_init_lr": task.rate / warmup, "warmup_steps": warmup}}
    settings = llm["optimizer"].pop("Distro")
    if task.settings["optimizer"] == "SparseLoCo":
        settings = {name: settings[name] for name in ("clip_grad_norm", "weight_decay", "rates")}
        settings |= {"inner_steps": inner, "topk": task.settings["topk"]}
    else:
        settings["compression_topk"] = task.settings["topk"]
    llm["optimizer"] = {task.settings["optimizer"]: settings}
    return state


def _inner_steps(task: tasks.Task) -> int:
    inner: int = task.settings["inner_steps"]
    return inner


class OursRun:
    """See the module. folder: of this cell."""

    def __init__(self, task: tasks.Task, *, folder: Path, lines: Lines) -> None:
        self._task = task
        self._folder = folder
        self._lines = lines
        self._server = ""
        self.processes: dict[int, subprocess.Popen[str]] = {}
        self._told: dict[int, ClientProgress] = {}
        self._hosts: list[Host] = []
        self._file = folder / "state.toml"
        self._file.write_text(tomli_w.dumps(run_file(task)))

    def start_meeting(self) -> None:
        """Start the server and wait until it listens."""
        words = ("server", "run", "--state", str(self._file), "--init-min-clients", str(self._task.members))
        self._start(self._lines.service, "server", *words, "--host", self._lines.service.address)
        end = time.monotonic() + LISTEN_SECONDS
        while not self._server:
            for line in _read(self._folder / "server.jsonl"):
                match from_json(line):
                    case (_, Started() as event):
                        self._server = event.address
            if time.monotonic() > end:
                message = f"the server does not listen: {self._end_of('server')}"
                raise RuntimeError(message)
            time.sleep(0.1)

    def start_member(self, rank: int, host: Host) -> None:
        """Start a client; the first one publishes its journal."""
        name = f"member-{rank}"
        file = self._folder / f"{name}.jsonl"
        every = max(1, self._task.every // _inner_steps(self._task))
        self._told[rank] = ClientProgress(file, sequence_length=self._task.sequence_length, every=every)
        key = self._folder / f"{name}.key"
        SecretKey.generate().save(key)
        words = [
            "client",
            "train",
            "--run-id",
            RUN_ID,
            "--server-addr",
            self._server,
            "-i",
            str(key),
            "--base",
            self._task.folder,
        ]
        words += ["--torch-threads", "1", "--micro-batch-size", str(self._task.sequences)]
        words += ["--checkpoint-dir", str(self._folder / f"{name}-checkpoints"), "--cache-dir", str(self._folder / "cache")]
        if rank == 0:
            words += ["--publish-journal", str(self._folder / "journals")]
        self.processes[rank] = self._start(host, name, *words)
        self._hosts.append(host)

    def _start(self, host: Host, name: str, *words: str) -> subprocess.Popen[str]:
        command = (sys.executable, "-m", "psyche_core", *words, "--logs", "none")
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PSYCHE_")}
        with (self._folder / f"{name}.log").open("a") as log:
            return start(
                host,
                *command,
                "--events-file",
                str(self._folder / f"{name}.jsonl"),
                folder=ROOT,
                log=log,
                environment={**kept, "OMP_NUM_THREADS": "1"},
            )

    def steps(self, rank: int) -> list[Step]:
        """What a member has trained so far."""
        return self._told[rank].steps()

    def leave(self) -> None:
        """Ask the clients to leave, and wait: the journal is published then."""
        for host in self._hosts:
            kill_all(host, signal.SIGTERM)
        end = time.monotonic() + LEAVE_SECONDS
        while any(process.poll() is None for process in self.processes.values()) and time.monotonic() < end:
            time.sleep(0.1)

    def losses(self) -> list[tuple[Weights, float]]:
        """Validation losses of the weights after every so many steps, recomputed from the journal."""
        found: list[tuple[Weights, float]] = []
        before: Path | None = None
        for each in self._told[0].weights():
            out = self._folder / f"model-{each.step}"
            if not self._recompute(each.step, out, before=before):
                break
            if before is not None:
                shutil.rmtree(before)
            before = out
            model = _with_weights(Path(self._task.folder), out)
            found.append((each, tasks.validation_loss(model, Path(self._task.folder), self._task.sequence_length)))
        return found

    def _recompute(self, step: int, out: Path, *, before: Path | None) -> bool:
        """Write the model after a step; False if the journals do not reach so far."""
        from psyche_core.audit.auditing import AuditRequest, audit
        from psyche_core.config.run_config import load_run_file
        from psyche_core.errors import PsycheError
        from psyche_core.plugins import PluginRegistry

        request = AuditRequest(
            sources=[self._folder / "journals"],
            run=load_run_file(self._file),
            base=Path(self._task.folder),
            cache=self._folder / "cache",
            checkpoint=before,
            until=step,
            out=out,
        )
        try:
            report = audit(request, PluginRegistry.discover().load)
        except PsycheError as error:
            sys.stderr.write(f"the model of step {step} cannot be recomputed: {error}\n")
            return False
        return report.out is not None

    def why(self, rank: int) -> str:
        """The last line that a member left."""
        return self._end_of(f"member-{rank}")

    def _end_of(self, name: str) -> str:
        lines = [line for line in _read(self._folder / f"{name}.log") if line.strip()]
        return (lines or [""])[-1][:300]


def _read(file: Path) -> list[str]:
    return file.read_text(errors="replace").splitlines() if file.exists() else []


def _with_weights(folder: Path, checkpoint: Path) -> Any:
    from safetensors.torch import load_file

    model = tasks.load_model(folder)
    weights: dict[str, Any] = {}
    for file in checkpoint.glob("*.safetensors"):
        weights |= load_file(file)
    model.load_state_dict(weights)
    return model
