"""Fixtures: keys, a clock tests move by hand, a real server on a free port, and raw connections to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import pytest

from psyche_backend_tcp.client import TcpBackend
from psyche_backend_tcp.limits import SERVER_FRAME, Limits
from psyche_backend_tcp.server import TcpServer
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.hookspecs import BackendContext, ServerContext
from psyche_core.testing.backend import START_TIME, small_state
from psyche_core.wire.frames import FramedStream
from psyche_core.wire.signing import SecretKey


class Clock:
    """Unix seconds that only tests move."""

    def __init__(self) -> None:
        self.now = START_TIME

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def keys() -> list[SecretKey]:
    return [SecretKey(bytes([number]) * 32) for number in (1, 2, 3)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


Serving = Callable[..., AbstractAsyncContextManager[TcpServer]]


@pytest.fixture
def serving(clock: Clock) -> Serving:
    """`async with serving(state=…, limits=…, **context) as server`: a server that serves while inside."""

    @asynccontextmanager
    async def start(
        *, state: CoordinatorState | None = None, limits: Limits | None = None, **context: Any
    ) -> AsyncIterator[TcpServer]:
        context = {"tick_seconds": 0.02, "state": state or small_state(), **context}
        async with TcpServer(ServerContext(**context), limits=limits, clock=clock) as server, anyio.create_task_group() as group:
            group.start_soon(server.serve)
            yield server
            group.cancel_scope.cancel()

    return start


def connect(server: TcpServer, key: SecretKey, *, run_id: str = "conformance", retry_seconds: float = 10.0) -> TcpBackend:
    return TcpBackend(BackendContext(run_id=run_id, address=server.address, key=key, retry_seconds=retry_seconds))


async def open_raw(address: str) -> FramedStream:
    """Frames over a connection that has not logged in; the test is the peer."""
    host, _, port = address.rpartition(":")
    return FramedStream(await anyio.connect_tcp(host, int(port)), receive_limit=SERVER_FRAME, send_limit=2**31)


@pytest.fixture
def client() -> Callable[..., TcpBackend]:
    return connect


@pytest.fixture
def raw() -> Callable[[str], Any]:
    return open_raw
