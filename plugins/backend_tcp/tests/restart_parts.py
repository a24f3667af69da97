"""A server that dies and comes back at the same port: for tests of what is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from psyche_backend_tcp.connections.addresses import parse_address
from psyche_backend_tcp.limits import Limits
from psyche_backend_tcp.server.tcp_server import TcpServer
from psyche_core.hookspecs import ServerContext
from psyche_core.testing.backend import small_state
from psyche_core.types import NodeIdentity
from psyche_core.wire.messages import sign_join
from psyche_core.wire.signing import SecretKey

TIMEOUT = 10.0

SERVER_KEY = SecretKey(b"s" * 32)


@asynccontextmanager
async def hosting(
    folder: Path, clock: Any, *, port: int = 0, limits: Limits | None = None, **context: Any
) -> AsyncIterator[TcpServer]:
    """A server that keeps its state in a folder; leaving it stops it without ceremony."""
    context = {"state": small_state(), "tick_seconds": 0.01, "key": SERVER_KEY, "state_dir": folder, **context}
    server = TcpServer(ServerContext(port=port, **context), limits=limits, clock=clock)
    async with server, anyio.create_task_group() as group:
        group.start_soon(server.serve)
        yield server
        group.cancel_scope.cancel()


def port_of(server: TcpServer) -> int:
    return parse_address(server.address).port


def proof_of(key: SecretKey, server: TcpServer) -> bytes:
    return sign_join(key, server.state.instance, key.public)


def identity_of(key: SecretKey) -> NodeIdentity:
    return NodeIdentity(key.public, key.public)
