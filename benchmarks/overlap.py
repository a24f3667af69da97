"""How busy trainers stay while results travel: whole clients over links shaped to an ordinary line's speed and distance.

    python -m benchmarks.overlap [--clients 8] [--rounds 12] [--train-seconds 4] [--megabits 100] [--rtt-ms 100]
                                 [--payload-mb 3.3] [--json]

One process holds a coordinator and the clients, real ones: state machine, runtime, worker, signatures. Only training is a wait
of so many seconds, in a thread, and its result random bytes of a 1 B-parameter model's size. Messages and blobs travel through
links shaped here: every client has one line, up and down, on which transfers take turns in parts of 64 KiB; every message,
request and statement takes half a round trip, to the coordinator too.

    busy_share                from each client's first trained step to its last, the share of time it trained (goal: 0.97)
    busy_share_at_its_best    the same if the coordinator were next to everybody: what is lost is then only between clients
    link_share                of a line's upward bytes, how many were used

A round ends when all have said that they are done, witnesses have told the coordinator so and it has told them of the next: three
times half a round trip. Trainers say so ahead of time once they know how long both take (`finish_estimator`); in the first
rounds of a run they cannot know it, which is why the ceiling is not 1.
"""

# ruff: noqa: ARG002  # the trainer takes what the contract says, and needs little of it
from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from psyche_core.builtin.dummy_data import DummyData
from psyche_core.builtin.memory_backend import MemoryBackend, MemoryCoordinator
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.runtime.resources import Resources, ResourcesRequest
from psyche_core.client.runtime.runtime import ClientRuntime
from psyche_core.client.runtime.worker import Worker
from psyche_core.config.run_config import parse_run_file
from psyche_core.coordinator import new_state
from psyche_core.coordinator.commands import Command
from psyche_core.interfaces.backend import StateUpdate
from psyche_core.interfaces.data import Samples
from psyche_core.p2p.manifest import Manifest, Piece, Table, parameter_table
from psyche_core.p2p.message_log import LogEntry
from psyche_core.telemetry.sinks import EventBus
from psyche_core.wire.signing import SecretKey

RUN = """
run_id = "overlap"
[config]
warmup_time = 60
cooldown_time = 1
max_round_train_time = 60
round_witness_time = 10
epoch_time = 3600
total_steps = {steps}
init_min_clients = {clients}
min_clients = {clients}
witness_nodes = 0
global_batch_size_start = {clients}
global_batch_size_end = {clients}
global_batch_size_warmup_tokens = 0
verification_percent = 0
waiting_for_members_extra_time = 1
[model.LLM]
architecture = "Dummy"
data_type = "Pretraining"
max_seq_len = 16
cold_start_warmup_steps = 0
data_location = "Dummy"
checkpoint = {{ Hub = {{ repo_id = "model" }} }}
lr_schedule = {{ Constant = {{ base_lr = 1e-3, warmup_init_lr = 0.0, warmup_steps = 0 }} }}
optimizer = {{ AdamW = {{ betas = [0.9, 0.95], weight_decay = 0.1, eps = 1e-8 }} }}
"""
PART_BYTES = 64 * 1024


# ------------------------------------------------------------------------------------------------ links


class Line:
    """One direction of a client's line. used: bytes."""

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self.used = 0
        self._free_at = 0.0

    def put(self, size: int) -> float:
        """Put bytes on it behind what is there; when they are through."""
        self._free_at = max(anyio.current_time(), self._free_at) + size / self.bytes_per_second
        self.used += size
        return self._free_at


_asker: ContextVar[ShapedTransport | None] = ContextVar("asker", default=None)


class ShapedTransport(MemoryTransport):
    """A memory transport with a line. one_way: seconds that anything takes to another client."""

    def __init__(self, network: MemoryNetwork, peer_id: bytes, *, bytes_per_second: float, one_way: float) -> None:
        super().__init__(network, peer_id)
        self.up, self.down = Line(bytes_per_second), Line(bytes_per_second)
        self._one_way = one_way

    def take(self, giver: MemoryTransport, entry: LogEntry, *, relayed: bool) -> bool:
        """A message arrives later, and is passed on then."""

        def arrive() -> None:
            if super(ShapedTransport, self).take(giver, entry, relayed=relayed):
                known = next((own for own in self.live_messages() if own.message == entry.message), None)
                if known is not None:
                    self._network.forward(self, known)

        asyncio.get_running_loop().call_later(self._one_way, arrive)
        return False

    async def fetch(self, blob_hash: bytes, **given: Any) -> bytes:
        """As ever; who is asked knows by whom."""
        token = _asker.set(self)
        try:
            return await super().fetch(blob_hash, **given)
        finally:
            _asker.reset(token)

    async def blob(self, blob_hash: bytes) -> bytes | None:
        """Our blob for another client: after half a round trip for the request, over both lines, and half a round trip again."""
        asker = _asker.get()
        assert asker is not None
        await anyio.sleep(self._one_way)
        blob = await super().blob(blob_hash)
        left, through = len(blob or b""), 0.0
        while left:
            part = min(left, PART_BYTES)
            left -= part
            await anyio.sleep_until(self.up.put(part))
            through = asker.down.put(part)
        await anyio.sleep_until(through + self._one_way)
        return blob


class FarBackend(MemoryBackend):
    """A connection on which everything takes so many seconds one way."""

    def __init__(self, coordinator: MemoryCoordinator, key: SecretKey, *, one_way: float) -> None:
        super().__init__(coordinator, key)
        self._one_way = one_way

    async def next_state(self) -> StateUpdate:
        """The newest state, a while after it was new."""
        update = await super().next_state()
        await anyio.sleep(self._one_way)
        return update

    async def send(self, command: Command, *, timeout: float) -> None:
        """A command, a while after it was sent."""
        await anyio.sleep(self._one_way)
        await super().send(command, timeout=timeout)


# ------------------------------------------------------------------------------------------------ clients


@dataclass(frozen=True, slots=True)
class Done:
    """A trained share."""

    loss: float
    tokens: int
    seconds: float
    payload: bytes
    learning_rate: float = 0.1
    gradient_norm: float = 1.0
    compress_seconds: float = 0.0


@dataclass(slots=True)
class WaitingTrainer:
    """Trains by waiting. times: when it trained, (from, to)."""

    seconds: float
    payload_bytes: int
    times: list[tuple[float, float]] = field(default_factory=list)
    weights: bytes = bytes(32)
    parameter_count: int = 1
    vocab_size: int = 256
    description: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def max_payload_bytes(self) -> int:
        return self.payload_bytes

    @property
    def table(self) -> Table:
        return parameter_table({"weights": (8,)})

    def train(self, step: int, samples: Samples) -> Done:
        began = time.perf_counter()
        payload = os.urandom(self.payload_bytes)
        time.sleep(max(0.0, self.seconds - (time.perf_counter() - began)))
        self.times.append((began, time.perf_counter()))
        return Done(1.0, samples.count * samples.sequence_length, self.seconds, payload)

    def forget(self) -> None:
        """Nothing waits to be settled."""

    def rate_of(self, step: int) -> float:
        return 0.1

    def apply(self, step: int, payloads: Sequence[bytes], *, own_accepted: bool, learning_rate: float | None = None) -> None:
        self.weights = hashlib.sha256(self.weights + b"".join(sorted(payload[:32] for payload in payloads))).digest()

    def check(self, payload: bytes) -> None:
        """All fit."""

    def positions(self, payload: bytes) -> None:
        """They have none."""

    def full_digest(self) -> bytes:
        return hashlib.sha256(self.weights).digest()

    def read_piece(self, piece: Piece) -> bytes:
        return self.weights

    def differing(self, manifest: Manifest) -> tuple[int, ...]:
        return ()

    def install(self, manifest: Manifest, pieces: Mapping[int, bytes | memoryview]) -> None:
        """Never needed here."""

    def evaluate(self, samples: Samples) -> float:
        return 1.0

    def save(self, directory: Path) -> None:
        """Nothing is kept."""

    def save_private(self, path: Path) -> None:
        """Nothing is kept."""


async def play(given: argparse.Namespace, *, to_coordinator: float) -> dict[str, float]:
    """One run; see the module. to_coordinator: seconds one way."""
    run = parse_run_file(RUN.format(clients=given.clients, steps=given.rounds), source="benchmarks.overlap")
    coordinator = MemoryCoordinator(new_state(run.run_id, run.config, run.model, instance=bytes(32)))
    network = MemoryNetwork()
    trainers = [WaitingTrainer(given.train_seconds, round(given.payload_mb * 1e6)) for _ in range(given.clients)]
    transports: list[ShapedTransport] = []

    async def member(trainer: WaitingTrainer) -> None:
        key = SecretKey.generate()

        async def build(_: ResourcesRequest) -> Resources:
            return Resources(trainer, data)

        speed, one_way = given.megabits * 1e6 / 8, given.rtt_ms / 2000
        async with (
            FarBackend(coordinator, key, one_way=to_coordinator) as backend,
            ShapedTransport(network, key.public, bytes_per_second=speed, one_way=one_way) as transport,
            DummyData(sequence_length=16) as data,
        ):
            transports.append(transport)
            bus = EventBus()
            worker = Worker(build, transport=transport, report=bus)
            runtime = ClientRuntime(run_id=run.run_id, key=key, backend=backend, transport=transport, worker=worker, report=bus)
            await runtime.run()

    async with anyio.create_task_group() as clock:
        clock.start_soon(coordinator.run)
        async with anyio.create_task_group() as members:
            for trainer in trainers:
                members.start_soon(member, trainer)
        clock.cancel_scope.cancel()

    if len({trainer.weights for trainer in trainers}) != 1 or any(len(trainer.times) != given.rounds for trainer in trainers):
        message = f"steps trained by each: {[len(trainer.times) for trainer in trainers]} of {given.rounds}, or replicas differ"
        raise SystemExit(message)

    spans = [trainer.times[-1][1] - trainer.times[0][0] for trainer in trainers]
    busy = [sum(end - start for start, end in trainer.times) / span for trainer, span in zip(trainers, spans, strict=True)]
    used = [transport.up.used / (transport.up.bytes_per_second * span) for transport, span in zip(transports, spans, strict=True)]
    return {"busy": statistics.fmean(busy), "link": statistics.fmean(used)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12, help="steps trained (default: 12)")
    parser.add_argument("--train-seconds", type=float, default=4.0)
    parser.add_argument("--megabits", type=float, default=100.0, help="of each line, up and down (default: 100)")
    parser.add_argument("--rtt-ms", type=float, default=100.0, help="between any two, the coordinator included (default: 100)")
    parser.add_argument("--payload-mb", type=float, default=3.3)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    given = parser.parse_args()
    far = anyio.run(lambda: play(given, to_coordinator=given.rtt_ms / 2000))
    near = anyio.run(lambda: play(given, to_coordinator=0.0))
    figures = {
        "busy_share": round(far["busy"], 4),
        "busy_share_at_its_best": round(near["busy"], 4),
        "clients": given.clients,
        "link_mbit": given.megabits,
        "rtt_ms": given.rtt_ms,
        "payload_bytes": round(given.payload_mb * 1e6),
        "link_share": round(far["link"], 4),
    }
    with contextlib.suppress(BrokenPipeError):
        lines = "".join(f"{name:24} {value}\n" for name, value in figures.items())
        sys.stdout.write(json.dumps(figures) + "\n" if given.json else lines)


if __name__ == "__main__":
    main()
