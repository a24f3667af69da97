"""A real endpoint that breaks the rules, and honest ones beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio

from psyche_core.p2p.message_log import LogLimits
from psyche_core.testing.transport import connected, received
from psyche_core.wire.frames import FrameDecoder, frame
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.addresses.peer_address import PeerAddress
from psyche_p2p_quic.connections import control_frames
from psyche_p2p_quic.connections.control_frames import Hello
from psyche_p2p_quic.endpoint.endpoint import Endpoint
from psyche_p2p_quic.endpoint.links import Link, LinkLost, Stream
from psyche_p2p_quic.settings import QuicSettings
from psyche_p2p_quic.transport import QuicTransport

SETTINGS = QuicSettings(
    heartbeat_seconds=0.05,
    silent_beats=40,  # a busy machine may hold a process up for most of a second
    penalty_seconds=60,
    handshake_seconds=5,
    stall_seconds=2,
    hedge_seconds=0.05,
    streams_served=4,
    false_blobs=2,
    send_queue_bytes=2**18,
    log=LogLimits(own_messages=100),
)
BLOB = b"honest" * 50_000


class Rogue:
    """A member's key on a raw endpoint; says only what a test makes it say."""

    def __init__(self, endpoint: Endpoint, key: SecretKey) -> None:
        self.endpoint = endpoint
        self.key = key
        self.peer_id = key.public
        self.address = PeerAddress(endpoint.sockets).encode()

    async def link(self, victim: QuicTransport) -> Link:
        return await self.endpoint.dial(victim.peer_id, PeerAddress.decode(victim.address).dialable())

    async def greeted(self, victim: QuicTransport, *, hello: Hello | None = None) -> tuple[Link, Stream]:
        """A link past the hello, and its control stream."""
        link = await self.link(victim)
        stream = await link.open()
        await stream.write(framed(hello or Hello("run", b"instance")))
        decoder = FrameDecoder(limit=10**6)
        while decoder.next() is None:
            data = await stream.read(1000)
            assert data, "no hello in return"
            decoder.feed(data)
        return link, stream


def framed(value: control_frames.Frame) -> bytes:
    return frame(control_frames.encode(value), limit=10**6)


@asynccontextmanager
async def world(
    *, settings: QuicSettings = SETTINGS, dialled: bool = False
) -> AsyncIterator[tuple[QuicTransport, QuicTransport, Rogue]]:
    """Two honest endpoints and a rogue, all members; the honest ones do not dial the rogue unless `dialled`."""
    with anyio.fail_after(60):
        key = SecretKey.generate()
        endpoint = await Endpoint.bind(key.seed, interface="127.0.0.1", port=0)
        try:
            rogue = Rogue(endpoint, key)
            async with (
                QuicTransport("run", SecretKey.generate(), settings=settings) as victim,
                QuicTransport("run", SecretKey.generate(), settings=settings) as friend,
            ):
                everybody = {e.peer_id: e.address for e in (victim, friend)}
                everybody[rogue.peer_id] = rogue.address if dialled else b""
                for honest in (victim, friend):
                    await honest.set_peers(everybody)
                await connected((victim, friend))
                yield victim, friend, rogue
        finally:
            await endpoint.aclose(timeout=1)


async def honest_pair_works(victim: QuicTransport, friend: QuicTransport) -> None:
    await friend.broadcast(b"still here", tag=1)
    while (await received(victim, 1))[0].message != b"still here":
        pass
    blob_hash = await friend.publish(BLOB, tag=1)
    assert await victim.fetch(blob_hash, sources=[friend.peer_id], max_bytes=10**6, timeout=20, tag=1) == BLOB


async def talk(stream: Stream) -> None:
    """Keep the connection alive."""
    with suppress(LinkLost):
        while True:
            await stream.write(framed(control_frames.Pong(1)))
            await anyio.sleep(0.05)
