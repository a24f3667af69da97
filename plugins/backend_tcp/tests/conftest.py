"""Fixtures: keys, a clock tests move by hand, a real server on a free port, and raw connections to it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import pytest

from psyche_backend_tcp.client.connection import TcpBackend
from psyche_backend_tcp.connections.addresses import parse_address
from psyche_backend_tcp.connections.login import Login, check_welcome, decode_hello, encode_login
from psyche_backend_tcp.connections.tls import open_tls
from psyche_backend_tcp.limits import LOGIN_FRAME, SERVER_FRAME, Limits
from psyche_backend_tcp.protocol import Welcome, decode_server
from psyche_backend_tcp.server.tcp_server import TcpServer
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.hookspecs import BackendContext, ServerContext
from psyche_core.testing.backend import START_TIME, small_state
from psyche_core.wire.codec import decode
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
    """Frames over TLS that has not logged in; the test is the peer."""
    server = parse_address(address)
    stream = await anyio.connect_tcp(server.host, server.port)
    secure, _ = await open_tls(stream, expected=server.key)
    return FramedStream(secure, receive_limit=SERVER_FRAME, send_limit=2**31)


async def log_in(frames: FramedStream, key: SecretKey, server: TcpServer, *, known: bytes = b"") -> None:
    """Log in over `open_raw`, as the service the server says it is."""
    payload = await frames.receive()
    service = decode(payload, max_bytes=LOGIN_FRAME)[2]
    hello = decode_hello(payload, service=service)
    login = Login(key.public, secrets.token_bytes(32), known)
    server_key = parse_address(server.address).key
    assert server_key is not None
    await frames.send(encode_login(hello, login, key, run_id=hello.run_id, server_key=server_key))
    welcome = decode_server(await frames.receive())
    assert isinstance(welcome, Welcome), welcome
    check_welcome(welcome.signature, hello, login, server_key=server_key)


@pytest.fixture
def client() -> Callable[..., TcpBackend]:
    return connect


@pytest.fixture
def login() -> Callable[..., Any]:
    return log_in


@pytest.fixture
def raw() -> Callable[[str], Any]:
    return open_raw
