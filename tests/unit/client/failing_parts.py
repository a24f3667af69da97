"""Trainers, data and clients that fail: for tests of errors that nobody foresaw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from party import RUN, ChainTrainer
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.runtime.resources import Resources, ResourcesRequest
from psyche_core.client.runtime.worker import Worker
from psyche_core.config.run_config import parse_run_file
from psyche_core.coordinator import new_state
from psyche_core.interfaces import DataProvider
from psyche_core.interfaces.data import Samples
from psyche_core.telemetry import events as telemetry


def problems(told: Sequence[telemetry.Event]) -> list[str]:
    return [event.message for event in told if isinstance(event, telemetry.Problem)]


# ------------------------------------------------------------------------------------------------ the worker alone
class Shop:
    """A worker over a trainer and data of one's own, loaded."""

    def __init__(self, trainer: ChainTrainer, data: DataProvider, *, checkpoints: Path | None = None) -> None:
        self.told: list[telemetry.Event] = []
        self.transport = MemoryTransport(MemoryNetwork(), bytes(32))
        resources = Resources(
            trainer,
            data,
            validation=Samples(bytes(32), 1, 16, 2),
            checkpoints=checkpoints,
            data_name="the data provider Short (short-data 2.0)",
        )

        async def build(_: ResourcesRequest) -> Resources:
            return resources

        self.worker = Worker(build, transport=self.transport, report=self.told.append)

    async def load(self) -> Worker:
        run = parse_run_file(RUN.format(total_steps=9, min_clients=1, witness_nodes=0, rounds_per_epoch=3), source="world")
        state = new_state(run.run_id, run.config, run.model, instance=bytes(32))
        ready = await self.worker.do(act.Load(replace(state, progress=replace(state.progress, step=2))))
        assert isinstance(ready, ev.ModelReady)
        return self.worker
