"""Every check that a transport must pass, over a real Redis of this machine."""

import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import ClassVar

import pytest
from psyche_p2p_redis.hooks import create
from psyche_p2p_redis.settings import RedisSettings
from psyche_p2p_redis.transport import RedisTransport
from redis_process import RedisProcess

from psyche_core.hookspecs import TransportContext
from psyche_core.interfaces import Transport
from psyche_core.testing.registration import RegistrationConformance
from psyche_core.testing.transport import TransportConformance
from psyche_core.wire.signing import SecretKey


class TestRedis(TransportConformance):
    capabilities = frozenset({"checked-messages"})
    timeout = 10
    can_cut = True
    runs: ClassVar = count()

    @pytest.fixture(autouse=True)
    def _where(self, redis_server: RedisProcess) -> None:
        self.settings = RedisSettings(redis_url=redis_server.url)

    @asynccontextmanager
    async def make_mesh(self, count: int) -> AsyncIterator[list[Transport]]:
        run_id = f"test {next(self.runs)}"
        async with AsyncExitStack() as stack:
            mesh = []
            for number in range(count):
                context = TransportContext(run_id=run_id, key=SecretKey(bytes([number + 1]) * 32), settings=self.settings)
                mesh.append(await stack.enter_async_context(create(context)))
            for endpoint in mesh:
                await endpoint.set_peers({other.peer_id: other.address for other in mesh if other is not endpoint})
            yield mesh

    def cut(self, one: Transport, other: Transport) -> None:
        """One Redis cannot be cut for two members only, so they turn deaf to each other."""
        for deaf, peer in ((one, other), (other, one)):
            assert isinstance(deaf, RedisTransport)
            meeting = deaf._meeting
            meeting._refused_until[peer.peer_id] = math.inf
            meeting._end([link for link in meeting._all() if link.peer == peer.peer_id])

    def mend(self, one: Transport, other: Transport) -> None:
        for deaf, peer in ((one, other), (other, one)):
            assert isinstance(deaf, RedisTransport)
            del deaf._meeting._refused_until[peer.peer_id]
            deaf._meeting._greet_now.set()


class TestRegistration(RegistrationConformance):
    kind, name = "transport", "redis"
