from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from psyche_core.interfaces.transport import Transport
from psyche_core.testing.transport import TransportConformance
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.settings import QuicSettings
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


class OverlayTransport(QuicTransport):
    """Always told a seed; from two members on it uses the overlay, in which four members have two neighbours each."""

    async def set_peers(self, peers: Mapping[bytes, bytes], *, seed: int | None = None) -> None:
        await super().set_peers(peers, seed=seed or 1)


class TestQuicTransportWithAnOverlay(TransportConformance):
    capabilities = frozenset({"checked-messages"})

    @asynccontextmanager
    async def make_mesh(self, count: int) -> AsyncIterator[list[Transport]]:
        settings = QuicSettings(overlay_above=1, overlay_degree=2, guest_idle_seconds=0.2)
        async with AsyncExitStack() as stack:
            mesh = [
                await stack.enter_async_context(OverlayTransport("run", SecretKey.generate(), settings=settings))
                for _ in range(count)
            ]
            for endpoint in mesh:
                await endpoint.set_peers({other.peer_id: other.address for other in mesh if other is not endpoint})
            yield [*mesh]
