"""A run of real processes in a folder: started, meddled with, waited for by what they tell, and judged by the run's metrics.

Every member writes its events to `NAME.jsonl` and everything else to `NAME.log`. What is done to members is noted with its time,
so that the metrics, which are filled afterwards from all files in the order of time, know who was killed, disturbed or asked to
leave, and holds everybody to the rest.

Server and clients are forked from a process that has imported torch (see fork_server.py), unless a command runs them that does
more than enter a network namespace.

The fixture `live_run` makes such runs; conftest.py of each folder whose tests use it imports it, with `fork_server` and
`run_keys`, which a module overrides to have its own lengths of epochs.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest
from safetensors.torch import load_file

from fork_server import ForkServer, Process, shared
from psyche_core.storage.checkpoint_names import checkpoints
from psyche_core.telemetry.events import Event, PhaseChanged, Started, StepTrained, WitnessSent
from psyche_core.telemetry.sinks import from_json
from psyche_core.training.digest import full_digest
from psyche_core.ui.run_metrics import RunMetrics
from psyche_core.wire.signing import SecretKey

RUN_ID = "local-testnet"
PROGRAM = [sys.executable, "-m", "psyche_core"]
THREE = ("client-1", "client-2", "client-3")
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
"""Keys of a model's config.json that make it small."""

RUN_KEYS: Mapping[str, object] = {
    "init_min_clients": 3,
    "min_clients": 2,
    "rounds_per_epoch": 8,
    "warmup_steps": 2,
    "global_batch_size_start": 6,
    "global_batch_size_end": 6,
    "max_round_train_time": 5,
    "cooldown_time": 1,
}
"""Short epochs of short rounds. The next epoch begins when three clients are there and ready, so whoever died is waited for."""

WAIT_SECONDS = 240.0
POLL_SECONDS = 0.05

_Found = TypeVar("_Found")
_Told = TypeVar("_Told", bound=Event)


@dataclass(frozen=True)
class Deed:
    """What was done to a member, and when (unix seconds). what: a method of RunMetrics."""

    time: float
    what: str
    name: str


class LiveRun:
    """See the module.

    config: folder with state.toml and data.toml, two below the folder in which the processes run. port: the server's.
    host: address the server listens on. forks: what programs that run here are forked from.
    """

    def __init__(self, config: Path, *, port: int, host: str = "127.0.0.1", forks: ForkServer) -> None:
        self.config = config
        self.folder = config.parents[1]
        self.processes: dict[str, Process] = {}
        self._forks = forks
        self._host = host
        self._port = port
        self._commands: dict[str, list[str]] = {}
        self._deeds: list[Deed] = []
        self._leaving: set[str] = set()
        self._read: dict[str, tuple[int, list[tuple[float, Event]]]] = {}

    # ------------------------------------------------------------------------------------------------ members

    def start_server(self, *options: object, inside: Sequence[object] = ()) -> None:
        """Start the server and wait until it listens. inside: a command that runs it."""
        files = ("--state", self.config / "state.toml", "--data-config", self.config / "data.toml")
        words = ("server", "run", *files, "--host", self._host, "--server-port", self._port, *options)
        self._start("server", words, inside=inside)
        self.wait(lambda: self.told("server", Started))

    def start_client(self, name: str, *options: object, inside: Sequence[object] = ()) -> None:
        """Start a client of that name, with a key and a checkpoint folder of its own. inside: a command that runs it."""
        key = self.folder / f"{name}.key"
        SecretKey.generate().save(key)
        address = self.told("server", Started)[-1].address
        train = ("client", "train", "--run-id", RUN_ID, "--server-addr", address, "-i", key, "--base", self.config)
        self._start(
            name, (*train, "--torch-threads", 1, "--checkpoint-dir", self.folder / f"{name}-checkpoints", *options), inside=inside
        )

    def start_again(self, name: str, *options: object) -> None:
        """Start a member that has ended with the very command it had, and more options for this once."""
        self._run(name, [*self._commands[name], *map(str, options)])

    def run_told(self, name: str, line: str) -> None:
        """Start a member, or end a wait of it, with a command line that a program told people to use."""
        program, *words = shlex.split(line)
        if program == "psyche":
            self._run(name, [*PROGRAM, *words])
        else:
            subprocess.run([program, *words], check=True, timeout=WAIT_SECONDS)

    def _start(self, name: str, arguments: Sequence[object], *, inside: Sequence[object] = ()) -> None:
        log = ("--logs", "none", "--events-file", self.folder / f"{name}.jsonl")
        words = [*inside, *PROGRAM, *arguments, *log]
        self._commands[name] = [str(word) for word in words]
        self._run(name, self._commands[name])

    def _run(self, name: str, command: list[str]) -> None:
        self._leaving.discard(name)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PSYCHE_")}
        environment["OMP_NUM_THREADS"] = "1"
        with (self.folder / f"{name}.log").open("ab") as log:
            network, words = _network_of(command)
            if words[: len(PROGRAM)] == PROGRAM:
                self.processes[name] = self._forks.start(
                    words[len(PROGRAM) :],
                    folder=self.folder,
                    environment=environment,
                    log=log.fileno(),
                    network=network,
                )
                return
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=environment
            )

    def kill(self, *names: str) -> None:
        """SIGKILL, to all at once."""
        for name in names:
            if name != "server":
                self.note("killed", name)
        for name in names:
            self.processes[name].kill()
        for name in names:
            self.processes[name].wait()

    def signal(self, name: str, number: int) -> None:
        """Send a signal. Those that ask to leave, and stops, are noted."""
        if number in (signal.SIGINT, signal.SIGTERM):
            self.note("asked_to_leave", name)
            self._leaving.add(name)
        elif number == signal.SIGSTOP:
            self.note("disturb", name)
        self.processes[name].send_signal(number)

    def note(self, what: str, name: str) -> None:
        """Note a deed for RunMetrics: the name of one of its methods."""
        self._deeds.append(Deed(time.time(), what, name))

    def close(self) -> None:
        """Kill whatever still runs."""
        for process in self.processes.values():
            process.kill()
            process.wait()

    # ------------------------------------------------------------------------------------------------ what they tell

    def events(self, name: str) -> list[tuple[float, Event]]:
        """(unix seconds, event), in the order told, by all processes of that name."""
        path = self.folder / f"{name}.jsonl"
        position, known = self._read.setdefault(name, (0, []))
        if path.exists():
            with path.open("rb") as stream:
                stream.seek(position)
                for line in stream:
                    if not line.endswith(b"\n"):
                        break  # still being written, or cut off by a kill
                    position += len(line)
                    parsed = from_json(line.decode())
                    if parsed is not None:
                        known.append(parsed)
        self._read[name] = (position, known)
        return known

    def told(self, name: str, kind: type[_Told], *, after: float = 0.0) -> list[_Told]:
        """Events of one kind, told later than `after` (unix seconds)."""
        return [event for moment, event in self.events(name) if isinstance(event, kind) and moment > after]

    def wait(self, found: Callable[[], _Found], *, seconds: float = WAIT_SECONDS) -> _Found:
        """Wait until `found` returns something true. Fails when a member ends before, or when it takes too long."""
        end = time.monotonic() + seconds
        while not (result := found()):
            for name, process in self.processes.items():
                expected = (None, 0) if name in self._leaving else (None, -signal.SIGKILL)
                assert process.poll() in expected, f"{name} ended early\n{self.log(name)}"
            assert time.monotonic() < end, f"it did not happen in {seconds:g} s\n" + "\n".join(map(self.log, self.processes))
            time.sleep(POLL_SECONDS)
        return result

    def wait_for_steps(self, name: str, count: int, *, after: float = 0.0) -> None:
        """Wait until a client has trained that many steps after a moment."""
        self.wait(lambda: len(self.told(name, StepTrained, after=after)) >= count)

    def is_witness(self, name: str) -> bool:
        """Whether the client's newest word about the current round is that it witnessed it."""
        said = [event for _, event in self.events(name) if isinstance(event, PhaseChanged | WitnessSent)]
        return bool(said) and isinstance(said[-1], WitnessSent)

    def resident_mb(self, name: str) -> float:
        """Memory that a member's process has in use now."""
        status = Path(f"/proc/{self.processes[name].pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def seconds_per_step(self, name: str, *, after: float = 0.0, before: float = math.inf) -> float:
        """Seconds from one step of a client to its next in a stretch of time, the middle one of all."""
        moments = [moment for moment, event in self.events(name) if isinstance(event, StepTrained) and after < moment < before]
        return statistics.median(later - earlier for earlier, later in pairwise(moments))

    def log(self, name: str) -> str:
        """The end of a member's log, with its newest events, for people."""
        path = self.folder / f"{name}.log"
        lines = path.read_text(errors="replace").splitlines()[-15:] if path.exists() else []
        newest = [str(event) for _, event in self.events(name)[-4:]]
        return "\n  ".join([f"--- {name}", *lines, *newest])

    # ------------------------------------------------------------------------------------------------ how it ended

    def wait_for_end(self, *, seconds: float = WAIT_SECONDS) -> None:
        """Wait until everybody that was not killed for good has ended, with exit code 0."""
        end = time.monotonic() + seconds
        for name, process in self.processes.items():
            if process.poll() != -signal.SIGKILL:
                try:
                    code = process.wait(timeout=max(0.0, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    raise AssertionError(f"{name} still runs\n" + "\n".join(map(self.log, self.processes))) from None
                assert code == 0, f"{name} ended with {code}\n{self.log(name)}"

    def metrics(self, *, total_steps: int | None = None) -> RunMetrics:
        """The book of the whole run, filled in the order of time."""
        entries: list[tuple[float, str, Event | Deed]] = [(deed.time, deed.name, deed) for deed in self._deeds]
        for name in self.processes:
            entries += [(moment, name, event) for moment, event in self.events(name)]
        metrics = RunMetrics(run_id=RUN_ID, total_steps=total_steps)
        for moment, name, entry in sorted(entries, key=lambda entry: entry[0]):
            if isinstance(entry, Deed):
                getattr(metrics, entry.what)(name)
            else:
                metrics.handle(name, moment, entry)
        return metrics

    def assert_kept_its_promises(self, *, steps: int, finishers: Sequence[str]) -> RunMetrics:
        """The run was finished; nothing accepted was lost; all replicas were equal at each epoch's end and in the checkpoints.

        finishers: clients that saw the end of the last epoch.
        """
        metrics = self.metrics(total_steps=steps)
        assert metrics.violations == [], metrics.violations
        assert metrics.unfinished() == [], metrics.unfinished()
        assert metrics.identical
        assert metrics.steps == steps
        last = max(metrics.epoch_ends)
        final = {name: metrics.clients[name].digests.get(last) for name in finishers}
        assert None not in final.values(), final
        assert len(set(final.values())) == 1
        for name in finishers:
            newest = checkpoints(self.folder / f"{name}-checkpoints", RUN_ID)[-1]
            assert full_digest(load_file(newest / "model.safetensors")).hex() == final[name], (
                f"{name}'s checkpoint is another model"
            )
        strays = [name for name, process in self.processes.items() if process.poll() is None]
        assert strays == []
        return metrics


# ---------------------------------------------------------------------------------------------------------------- fixtures

StartRun = Callable[..., LiveRun]


def _network_of(command: list[str]) -> tuple[str, list[str]]:
    """The network namespace's file that a command line enters first, "" if none, and the words it runs there."""
    match command:
        case ["nsenter", option, "--", *words] if option.startswith("--net="):
            return option.removeprefix("--net="), words
    return "", command


@pytest.fixture
def run_keys() -> Mapping[str, object]:
    """Keys of state.toml that every run of a module has changed."""
    return RUN_KEYS


@pytest.fixture(scope="session")
def fork_server() -> ForkServer:
    """What clients are forked from."""
    return shared()


@pytest.fixture
def live_run(
    local_testnet: Callable[..., Path],
    free_port: Callable[[], int],
    run_keys: Mapping[str, object],
    fork_server: ForkServer,
) -> Iterator[StartRun]:
    """A function that makes a small run with keys of its state.toml changed and starts its server; all is killed at the end.

    server: options of the server. inside: a command that runs it. host: address it listens on. optimizer: instead of DisTrO.
    """
    runs: list[LiveRun] = []

    def make(
        *,
        server: Sequence[object] = (),
        inside: Sequence[object] = (),
        host: str = "127.0.0.1",
        optimizer: str = "Distro",
        **changes: object,
    ) -> LiveRun:
        config = local_testnet(**{**run_keys, **changes})
        model = config / "model" / "config.json"
        model.write_text(json.dumps(json.loads(model.read_text()) | TINY))
        state = config / "state.toml"
        text = state.read_text().replace('Server = "127.0.0.1:', f'Server = "{host}:')
        state.write_text(text.replace("[model.LLM.optimizer.Distro", f"[model.LLM.optimizer.{optimizer}"))
        run = LiveRun(config, port=free_port(), host=host, forks=fork_server)
        runs.append(run)
        run.start_server(*server, inside=inside)
        return run

    yield make
    for run in runs:
        run.close()
