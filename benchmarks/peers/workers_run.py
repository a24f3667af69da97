"""The run of a peer: its meeting point, and a worker program for each member."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from benchmarks.peers import task as tasks
from benchmarks.peers.lines import Lines, start
from benchmarks.peers.progress import Progress, Step, Weights, WorkerProgress
from benchmarks.peers.systems import System
from tests.nat.lab import Host

ROOT = Path(__file__).parents[2]
PORT = 29510
MEETING_SECONDS = 60.0


class WorkersRun:
    """See the module. folder: of this cell. python: the peer's interpreter."""

    def __init__(self, system: System, task: tasks.Task, *, folder: Path, lines: Lines, python: Path) -> None:
        self._system = system
        self._task = task
        self._folder = folder
        self._lines = lines
        self._python = python
        self._meet = ""
        self.processes: dict[int, subprocess.Popen[str]] = {}
        self._told: dict[int, Progress] = {}
        task.save(folder / "task.json")

    def start_meeting(self) -> None:
        """Start what members meet at, if it is not the first of them."""
        address = self._lines.service.address
        match self._system.meeting:
            case "lighthouse":
                program = str(self._python.with_name("torchft_lighthouse"))
                self._service(program, "--bind", f"[::]:{PORT}", "--min_replicas", "1", "--join_timeout_ms", "60000")
                self._meet = f"{address}:{PORT}"
                time.sleep(1.0)  # it says nothing when it listens; members try again for a minute
            case "dht":
                process = self._service(str(self._python), "-m", "benchmarks.peers.workers.hivemind_meeting", address, piped=True)
                assert process.stdout is not None
                self._meet = process.stdout.readline().strip()
                if not self._meet:
                    message = f"the first peer of the DHT did not start: {self._end_of('service')}"
                    raise RuntimeError(message)

    def start_member(self, rank: int, host: Host) -> None:
        """Start a worker."""
        self._told[rank] = WorkerProgress(self._folder / f"member-{rank}.jsonl")
        meet = self._meet or f"{host.address}:{PORT}"
        self._meet = meet
        words = ("--task", str(self._folder / "task.json"), "--rank", str(rank), "--address", host.address, "--meet", meet)
        module = f"benchmarks.peers.workers.{self._system.worker}"
        with (self._folder / f"member-{rank}.log").open("a") as log:
            command = (str(self._python), "-m", module, *words, "--progress", str(self._folder / f"member-{rank}.jsonl"))
            self.processes[rank] = start(host, *command, folder=ROOT, log=log, environment=_environment())

    def _service(self, *command: str, piped: bool = False) -> subprocess.Popen[str]:
        with (self._folder / "service.log").open("a") as log:
            pipe = subprocess.PIPE if piped else None
            return start(self._lines.service, *command, folder=ROOT, log=log, environment=_environment(), stdout=pipe)

    def steps(self, rank: int) -> list[Step]:
        """What a member has trained so far."""
        return self._told[rank].steps()

    def leave(self) -> None:
        """Nothing is asked of workers when time is up: they are killed with their host."""

    def losses(self) -> list[tuple[Weights, float]]:
        """The first member's snapshots with their validation losses; call it when nothing runs any more. Deletes them."""
        import torch

        model = tasks.load_model(Path(self._task.folder))
        found = []
        for each in self._told[0].weights():
            if each.file is not None and each.file.exists():
                model.load_state_dict(torch.load(each.file, weights_only=True))
                loss = tasks.validation_loss(model, Path(self._task.folder), self._task.sequence_length)
                found.append((each, loss))
                each.file.unlink()
        return found

    def why(self, rank: int) -> str:
        """The last line that a member left."""
        return self._end_of(f"member-{rank}")

    def _end_of(self, name: str) -> str:
        file = self._folder / f"{name}.log"
        lines = [line.strip() for line in file.read_text(errors="replace").splitlines() if line.strip()] if file.exists() else []
        errors = [line for line in lines if "Error" in line and not line.startswith("File ")]
        return (errors or lines or [""])[-1][:300]


def _environment() -> dict[str, str]:
    """Of all workers: one thread for computing, and gloo on the host's interface."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PSYCHE_", "PYTHON"))}
    fixed = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    return {**kept, **fixed}
