"""The `Server` data location passes the class every provider passes, over a real socket to a real data server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from psyche_backend_tcp.data.provider import ServerData, ServerSettings
from psyche_backend_tcp.data.server import DataServer
from psyche_backend_tcp.limits import Limits
from psyche_core.coordinator.state import Client, CoordinatorState, Epoch, Round
from psyche_core.errors import DataError
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.testing.backend import small_state
from psyche_core.testing.data import DataConformance
from psyche_core.types import BatchId, NodeIdentity, RunState
from psyche_core.wire.signing import SecretKey

KEY = SecretKey(b"d" * 32)


class Folder(DataProvider):
    """The conformance class's folder of token files, read whole at each request: small, and damage is seen."""

    def __init__(self, folder: Path, *, sequence_length: int, token_size: int, count: int) -> None:
        self._folder, self._length, self._size, self._count = folder, sequence_length, token_size, count

    @property
    def sequence_length(self) -> int:
        return self._length

    @property
    def num_sequences(self) -> int:
        return self._count

    async def read(self, batches: Any, *, timeout: float) -> Samples:
        size, rows = self._length * self._size, []
        for path in sorted(self._folder.iterdir()):
            content = await anyio.Path(path).read_bytes()
            rows += [content[at : at + size] for at in range(0, len(content) - size + 1, size)]
        if len(rows) != self._count:
            message = f"expected {self._count} sequences in the folder, got {len(rows)}; restore the files"
            raise DataError(message)

        numbers = [number % self._count for batch in batches for number in range(batch.first, batch.last + 1)]
        return Samples(b"".join(rows[number] for number in numbers), len(numbers), self._length, self._size)

    async def aclose(self) -> None:
        """Nothing is open."""


def everything_is_ours() -> CoordinatorState:
    """A state in which KEY is the only trainer and its share is all samples there can be."""
    round_ = Round(height=0, step=1, seed=7, slots=(0,), batches=(BatchId(0, 2**63 - 2),))
    epoch = Epoch(clients=(Client(NodeIdentity(KEY.public, KEY.public)),), rounds=(round_,), start_time=1)
    return replace(small_state(), run_state=RunState.RoundTrain, epoch=epoch)


class TestServerData(DataConformance):
    @pytest.fixture
    def source(self, token_folder: Path) -> Iterator[str]:
        folder = Folder(
            token_folder, sequence_length=self.sequence_length, token_size=self.token_size, count=len(self.expected())
        )

        @asynccontextmanager
        async def serving() -> Any:
            state = everything_is_ours()
            server = await DataServer.bind(
                folder, "127.0.0.1", 0, run_id=state.run_id, key=SecretKey.generate(), limits=Limits(), state=lambda: state
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve)
                yield server.address
                await server.aclose()
                tasks.cancel_scope.cancel()

        with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(serving()) as address:
            yield address

    def provider(self, source: str) -> DataProvider:
        return ServerData(DataContext(settings=ServerSettings(location=source), sequence_length=self.sequence_length, key=KEY))
