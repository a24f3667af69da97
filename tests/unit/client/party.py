"""Clients with real runtimes over memory parts, on the real clock, whose trainers are hash chains."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from psyche_core.builtin.dummy_data import DummyData
from psyche_core.builtin.memory_backend import MemoryBackend, MemoryCoordinator
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.machine.machine import Timeouts
from psyche_core.client.runtime.resources import Resources
from psyche_core.client.runtime.runtime import ClientRuntime
from psyche_core.client.runtime.worker import Worker
from psyche_core.config.run_config import parse_run_file
from psyche_core.coordinator import new_state
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendError, ModelError, NonFiniteError, PayloadRejected, PluginFailed
from psyche_core.interfaces.data import Samples
from psyche_core.p2p.manifest import Manifest, Piece, Table, parameter_table
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus
from psyche_core.wire.signing import SecretKey

RUN = """
run_id = "world"
[config]
warmup_time = 20
cooldown_time = 2
max_round_train_time = 10
round_witness_time = 2
epoch_time = 400
total_steps = {total_steps}
init_min_clients = {min_clients}
min_clients = {min_clients}
witness_nodes = {witness_nodes}
global_batch_size_start = 12
global_batch_size_end = 12
global_batch_size_warmup_tokens = 0
verification_percent = 0
waiting_for_members_extra_time = 2
rounds_per_epoch = {rounds_per_epoch}
[model.LLM]
max_seq_len = 16
cold_start_warmup_steps = 0
architecture = "HfLlama"
data_type = "Pretraining"
data_location = "Dummy"
[model.LLM.checkpoint.Hub]
repo_id = "model"
[model.LLM.lr_schedule.Constant]
base_lr = 0.01
warmup_init_lr = 0.0
warmup_steps = 0
[model.LLM.optimizer.AdamW]
betas = [0.9, 0.95]
weight_decay = 0.1
eps = 1e-8
"""
"""The file of a run, to be filled in."""

INSTANCE = hashlib.sha256(b"world").digest()
"""Of every run in these tests."""

QUICK = RUN.replace("cooldown_time = 2", "cooldown_time = 1").replace("extra_time = 2", "extra_time = 1")
"""These seconds are real ones here."""

PATIENT = {
    "warmup_time = 20": "warmup_time = 100",
    "max_round_train_time = 10": "max_round_train_time = 100",
    "round_witness_time = 2": "round_witness_time = 100",
    "epoch_time = 400": "epoch_time = 4000",
}
"""Limits of what ends by itself as soon as everybody has spoken: longer ones cost nothing, and no slow machine reaches them."""

TABLE = {"total_steps": 6, "clients": 3, "min_clients": 2, "witness_nodes": 0, "rounds_per_epoch": 3}


@dataclass(frozen=True)
class Done:
    loss: float
    tokens: int
    seconds: float
    payload: bytes
    learning_rate: float = 0.1
    gradient_norm: float = 1.0
    compress_seconds: float = 0.0


class ChainTrainer:
    """A trainer whose weights are a hash chain over what was applied. broken: steps it cannot train.

    bad: steps whose results it makes of garbage, and believes to be right.
    """

    max_payload_bytes = 64
    parameter_count = 1
    vocab_size = 256

    def __init__(self, name: str, *, broken: tuple[int, ...] = (), bad: tuple[int, ...] = ()) -> None:
        self.name, self.broken, self.bad = name, broken, bad
        self.weights = bytes(32)
        self.applied: list[tuple[int, int]] = []
        self.installed: list[int] = []

    def train(self, step: int, samples: Samples) -> Done:
        if step in self.broken:
            message = "the gradient is not finite"
            raise NonFiniteError(message)

        prefix = b"bad!" if step in self.bad else b"good"
        return Done(4.0, samples.count * samples.sequence_length, 0.01, prefix + f"{self.name} {step}".encode())

    def forget(self) -> None:
        """Nothing waits to be settled."""

    def rate_of(self, step: int) -> float:
        return 0.1

    def apply(self, step: int, payloads: Sequence[bytes], *, own_accepted: bool, learning_rate: float | None = None) -> None:
        self.weights = hashlib.sha256(self.weights + repr((step, sorted(payloads))).encode()).digest()
        self.applied.append((step, len(payloads)))

    def check(self, payload: bytes) -> None:
        if not payload.startswith(b"good") and not self.bad:
            message = "does not fit"
            raise PayloadRejected(message)

    def positions(self, payload: bytes) -> None:
        """Its payloads have none."""

    def full_digest(self) -> bytes:
        return hashlib.sha256(self.weights).digest()

    @property
    def table(self) -> Table:
        return parameter_table({"chain": (8,)})

    def read_piece(self, piece: Piece) -> bytes:
        return self.weights

    def differing(self, manifest: Manifest) -> tuple[int, ...]:
        return () if manifest.hashes == (hashlib.sha256(self.weights).digest(),) else (0,)

    def install(self, manifest: Manifest, pieces: Mapping[int, bytes | memoryview]) -> None:
        self.weights = bytes(pieces.get(0, self.weights))
        self.installed.append(manifest.step)

    def evaluate(self, samples: Samples) -> float:
        return float(samples.count)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True)

    def save_private(self, path: Path) -> None:
        """It has nothing of its own."""

    @property
    def description(self) -> dict[str, bytes]:
        return {}


class Party:
    """Three runtimes over memory parts, on the real clock. patient: with the limits of PATIENT."""

    def __init__(
        self,
        trainers: list[ChainTrainer],
        *,
        backend: type[MemoryBackend] = MemoryBackend,
        patient: bool = False,
        **config: int,
    ) -> None:
        text = QUICK
        for short, long in PATIENT.items() if patient else ():
            assert short in text
            text = text.replace(short, long)
        run = parse_run_file(text.format(**{**TABLE, "clients": len(trainers), **config}), source="world")
        self.coordinator = MemoryCoordinator(new_state(run.run_id, run.config, run.model, instance=INSTANCE))
        self.network = MemoryNetwork()
        self.trainers = trainers
        self.backend = backend
        self.timeouts = Timeouts(peers=2.0)
        self.runtime = ClientRuntime
        self.transport = MemoryTransport
        self.events: list[list[telemetry.Event]] = [[] for _ in trainers]
        self.runtimes: dict[int, ClientRuntime] = {}
        self.failures: dict[int, Exception] = {}
        self.transports: dict[int, MemoryTransport] = {}

    async def member(self, index: int) -> None:
        key = SecretKey(hashlib.sha256(b"party" + bytes((index,))).digest())

        async def build(_: CoordinatorState) -> Resources:
            return Resources(self.trainers[index], data)

        async with (
            self.backend(self.coordinator, key) as backend,
            self.transport(self.network, key.public) as transport,
            DummyData(sequence_length=16) as data,
        ):
            self.transports[index] = transport
            bus = EventBus(self.events[index].append)
            runtime = self.runtimes[index] = self.runtime(
                run_id="world",
                key=key,
                backend=backend,
                transport=transport,
                worker=Worker(build, transport=transport, report=bus),
                report=bus,
                timeouts=self.timeouts,
            )
            try:
                await runtime.run()
            except (BackendError, ModelError, PluginFailed) as error:
                self.failures[index] = error

    async def play(self) -> None:
        async with anyio.create_task_group() as clock:
            clock.start_soon(partial(self.coordinator.run, tick_seconds=0.05))
            async with anyio.create_task_group() as members:
                for index in range(len(self.trainers)):
                    members.start_soon(self.member, index)
            clock.cancel_scope.cancel()

    def ended(self, index: int) -> telemetry.Ended:
        return next(event for event in self.events[index] if isinstance(event, telemetry.Ended))


def trainers(count: int = 3) -> list[ChainTrainer]:
    return [ChainTrainer(f"trainer-{number}") for number in range(count)]
