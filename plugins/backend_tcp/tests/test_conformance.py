from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from psyche_backend_tcp.client.connection import TcpBackend
from psyche_backend_tcp.server.tcp_server import TcpServer
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.hookspecs import BackendContext, ServerContext
from psyche_core.testing.backend import BackendConformance, BackendHarness
from psyche_core.wire.signing import SecretKey


class TestTcpBackend(BackendConformance):
    @pytest.fixture(autouse=True)
    def _clock(self, clock: Any) -> None:
        self.clock = clock

    @asynccontextmanager
    async def harness(self, state: CoordinatorState, keys: Sequence[SecretKey]) -> AsyncIterator[BackendHarness]:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(TcpServer(ServerContext(state=state), clock=self.clock))
            group = await stack.enter_async_context(anyio.create_task_group())
            group.start_soon(server.serve)
            backends = [
                await stack.enter_async_context(
                    TcpBackend(BackendContext(run_id=state.run_id, address=server.address, key=key, retry_seconds=5))
                )
                for key in keys[:2]
            ]

            def pass_time(seconds: int) -> None:
                self.clock.now += seconds
                server.tick()

            yield BackendHarness(backends, pass_time)
            group.cancel_scope.cancel()
