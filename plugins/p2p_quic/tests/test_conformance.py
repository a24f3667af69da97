from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from psyche_core.interfaces.transport import Transport
from psyche_core.testing.transport import TransportConformance
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.transport import QuicTransport

pytestmark = pytest.mark.quic


class TestQuicTransport(TransportConformance):
    capabilities = frozenset({"checked-messages"})

    @asynccontextmanager
    async def make_mesh(self, count: int) -> AsyncIterator[list[Transport]]:
        async with AsyncExitStack() as stack:
            mesh = [await stack.enter_async_context(QuicTransport("run", SecretKey.generate())) for _ in range(count)]
            for endpoint in mesh:
                await endpoint.set_peers({other.peer_id: other.address for other in mesh if other is not endpoint})
            yield [*mesh]
