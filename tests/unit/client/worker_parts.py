"""Two workers over a memory network, with small models: for tests of their work and of what goes between them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import torch

from party import RUN
from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.builtin.dummy_data import DummyData
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.model_sync.exchange import ModelExchange
from psyche_core.client.runtime.resources import Resources, ResourcesRequest
from psyche_core.client.runtime.worker import Worker
from psyche_core.config.run_config import parse_run_file
from psyche_core.coordinator import new_state
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.evaluation.spare_time import SpareTime
from psyche_core.p2p.manifest import PIECE_BYTES
from psyche_core.storage.scratch import Scratch
from psyche_core.telemetry import events as telemetry
from psyche_core.testing.toy_model import TOY_SHAPES, ToyModel, toy_samples
from psyche_core.training.trainer import Trainer

SHAPES = {**TOY_SHAPES, "big.weight": (3, PIECE_BYTES // 8 + 5), "layers.1.norm.weight": (64,)}

STEP, TAG = 4, 50


def run_state(*, step: int = 1, run_id: str = "world") -> CoordinatorState:
    table = {"total_steps": 9, "clients": 2, "min_clients": 2, "witness_nodes": 0, "rounds_per_epoch": 3, "cooldown_time": 1}
    run = parse_run_file(RUN.format(**table), source="world")
    state = new_state(run_id, run.config, run.model, instance=bytes(32))
    return replace(state, progress=replace(state.progress, step=step))


def build_trainer(seed: int) -> Trainer:
    model = ToyModel(SHAPES, seed=seed)
    return Trainer(model=model, optimizer=AdamW(AdamWSettings(), model), learning_rate=lambda _: 0.01, micro_batch_size=1)


class Member:
    """A worker with a real trainer, and what it told."""

    def __init__(
        self,
        name: str,
        network: MemoryNetwork,
        *,
        seed: int,
        transport: type[MemoryTransport] = MemoryTransport,
        folder: Path | None = None,
        spare: SpareTime | None = None,
    ) -> None:
        self.transport = transport(network, hashlib.sha256(name.encode()).digest())
        self.trainer = build_trainer(seed)
        self.told: list[telemetry.Event] = []
        self.scratch = Scratch(folder)
        self.exchange = ModelExchange(self.transport, report=self.told.append, scratch=self.scratch)
        self.worker = Worker(self._build, transport=self.transport, report=self.told.append, exchange=self.exchange, spare=spare)
        self.checkpoints: Path | None = None

    async def _build(self, _: ResourcesRequest) -> Resources:
        data = DummyData(sequence_length=16)
        return Resources(self.trainer, data, validation=toy_samples(7), checkpoints=self.checkpoints)

    @property
    def key(self) -> bytes:
        return self.transport.peer_id

    @property
    def masters(self) -> dict[str, torch.Tensor]:
        masters: dict[str, torch.Tensor] = dict(self.trainer._optimizer.masters)
        return masters

    async def snapshot(self) -> ev.SnapshotTaken:
        taken = await self.worker.do(act.TakeSnapshot(STEP, TAG))
        assert isinstance(taken, ev.SnapshotTaken)
        return taken

    async def fetch(self, taken: ev.SnapshotTaken, *sources: Member) -> ev.Event:
        keys = tuple(source.key for source in sources)
        return await self.worker.do(act.FetchModel(taken.step, taken.manifest_hash, taken.manifest_bytes, keys, TAG))

    def progress(self) -> list[telemetry.ModelSync]:
        return [event for event in self.told if isinstance(event, telemetry.ModelSync)]


@asynccontextmanager
async def members(
    *names: str, transports: dict[str, type[MemoryTransport]] | None = None, folder: Path | None = None
) -> AsyncIterator[list[Member]]:
    """Entered, loaded, connected with each other; the first has seed 1, all others seed 2. folder: shared by their files."""
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        found = []
        for number, name in enumerate(names):
            kind = (transports or {}).get(name, MemoryTransport)
            member = Member(name, network, seed=1 if number == 0 else 2, transport=kind, folder=folder)
            stack.callback(member.scratch.close)
            await stack.enter_async_context(member.transport)
            found.append(member)
        for member in found:
            await member.transport.set_peers({other.key: b"" for other in found})
            await member.worker.do(act.Load(run_state()))
        yield found


def files(folder: Path) -> list[Path]:
    return sorted((folder / "scratch").iterdir())
