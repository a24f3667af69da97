from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.errors import TransportError
from psyche_core.hookspecs import TransportContext
from psyche_core.interfaces.transport import Transport
from psyche_core.p2p.message_log import LogLimits
from psyche_core.testing.transport import TransportConformance, connected, received
from psyche_core.wire.signing import SecretKey


class TestMemoryTransport(TransportConformance):
    capabilities = frozenset({"checked-messages"})
    can_cut = True

    @asynccontextmanager
    async def make_mesh(self, count: int) -> AsyncIterator[list[Transport]]:
        self.network = MemoryNetwork()
        async with AsyncExitStack() as stack:
            mesh = [await stack.enter_async_context(MemoryTransport(self.network, bytes([n + 1]) * 32)) for n in range(count)]
            for endpoint in mesh:
                await endpoint.set_peers({other.peer_id: other.address for other in mesh if other is not endpoint})
            yield [*mesh]

    def cut(self, one: Transport, other: Transport) -> None:
        self.network.disconnect(one.peer_id, other.peer_id)

    def mend(self, one: Transport, other: Transport) -> None:
        self.network.reconnect(one.peer_id, other.peer_id)


async def test_endpoints_from_a_context_meet_only_in_a_shared_network() -> None:
    network = MemoryNetwork()
    contexts = [TransportContext(run_id="run", key=SecretKey(bytes([n]) * 32)) for n in range(3)]
    async with (
        MemoryTransport.from_context(contexts[0], network=network) as one,
        MemoryTransport.from_context(contexts[1], network=network) as other,
        MemoryTransport.from_context(contexts[2]) as alone,
    ):
        assert one.peer_id == contexts[0].key.public
        for endpoint in (one, other, alone):
            await endpoint.set_peers({context.key.public: b"" for context in contexts})
        await connected([one, other])
        assert alone.stats.peers == ()


async def test_one_key_attaches_once() -> None:
    network = MemoryNetwork()
    async with MemoryTransport(network, b"k" * 32):
        with pytest.raises(TransportError, match="already"):
            async with MemoryTransport(network, b"k" * 32):
                pass


async def test_a_flood_from_one_member_does_not_crowd_out_another() -> None:
    network = MemoryNetwork()
    limits = LogLimits(own_messages=3)
    async with (
        MemoryTransport(network, b"a" * 32) as flooder,
        MemoryTransport(network, b"b" * 32) as honest,
        MemoryTransport(network, b"c" * 32, limits=limits) as reader,
    ):
        await flooder.set_peers({reader.peer_id: b""})
        await honest.set_peers({reader.peer_id: b""})
        await reader.set_peers({flooder.peer_id: b"", honest.peer_id: b""})
        for n in range(10):
            await flooder.broadcast(bytes([n]), tag=1)
        await honest.broadcast(b"honest", tag=1)
        assert [incoming.message for incoming in await received(reader, 4)] == [b"\0", b"\1", b"\2", b"honest"]


async def test_a_message_is_announced_again_only_to_who_lacks_it() -> None:
    """Links that come back and members that come late cost one message for each that lacks it, whoever asks and how often."""
    network = MemoryNetwork()
    async with (
        MemoryTransport(network, b"a" * 32) as author,
        MemoryTransport(network, b"b" * 32) as holder,
        MemoryTransport(network, b"c" * 32) as late,
    ):
        everybody = {endpoint.peer_id: b"" for endpoint in (author, holder, late)}
        for endpoint in (author, holder):
            await endpoint.set_peers({author.peer_id: b"", holder.peer_id: b""})
        await author.broadcast(b"m" * 1000, tag=1)
        for _ in range(3):
            network.disconnect(author.peer_id, holder.peer_id)
            network.reconnect(author.peer_id, holder.peer_id)
            await author.broadcast(b"m" * 1000, tag=1)
        assert author.stats.bytes_sent == 1000

        for endpoint in (author, holder, late):
            await endpoint.set_peers(everybody)
        assert author.stats.bytes_sent + holder.stats.bytes_sent == 2000
