"""Numbers as data, a data server and its clients: for tests of both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio

from psyche_backend_tcp.data.provider import ServerData, ServerSettings
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.state import Client, CoordinatorState, Epoch, Round
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.testing.backend import small_state
from psyche_core.types import BatchId, NodeIdentity, RunState
from psyche_core.wire.signing import SecretKey

TIMEOUT = 10.0
LENGTH = 8


class Numbers(DataProvider):
    """Sample n is LENGTH times the number n mod 100; reading 13 fails, 14 blocks until `go`."""

    def __init__(self) -> None:
        self.go = anyio.Event()
        self.blocked = anyio.Event()
        self.reads = 0

    @property
    def sequence_length(self) -> int:
        return LENGTH

    @property
    def num_sequences(self) -> int:
        return 100

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        self.reads += 1
        numbers = [n % 100 for batch in batches for n in range(batch.first, batch.last + 1)]
        if 13 in numbers:
            message = "the disk is broken at /secret/path"
            raise IndexError(message)
        if 14 in numbers:
            self.blocked.set()
            with anyio.fail_after(timeout):
                await self.go.wait()
        return Samples(expected(numbers), len(numbers), LENGTH, 2)

    async def aclose(self) -> None:
        self.go.set()


def expected(numbers: Sequence[int]) -> bytes:
    return b"".join((n % 100).to_bytes(2, "little") * LENGTH for n in numbers)


def playing(keys: Sequence[SecretKey], *, samples: int = 30) -> CoordinatorState:
    """A state in the first round of an epoch of the first two keys, with samples 0.. to train."""
    clients = tuple(Client(NodeIdentity(key.public, key.public)) for key in keys[:2])
    round_ = Round(height=0, step=1, seed=7, slots=(0, 1), batches=(BatchId(0, samples - 1),))
    state = small_state()
    return replace(state, run_state=RunState.RoundTrain, epoch=Epoch(clients=clients, rounds=(round_,), start_time=state.since))


def holder(state: CoordinatorState, number: int) -> int:
    """The slot in whose share the sample is."""
    return next(slot for slot in (0, 1) if any(batch.first <= number <= batch.last for batch in own(state, slot)))


def own(state: CoordinatorState, slot: int) -> tuple[BatchId, ...]:
    return shares(state, state.epoch.rounds[0])[slot]


@asynccontextmanager
async def data_of(server: Any, key: SecretKey, *, length: int = LENGTH) -> AsyncIterator[ServerData]:
    context = DataContext(settings=ServerSettings(location=server.data_address), sequence_length=length, key=key)
    async with ServerData(context) as data:
        yield data
