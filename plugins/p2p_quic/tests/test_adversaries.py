"""A real endpoint that breaks the rules: only its own connection suffers."""

import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import anyio
import pytest

from psyche_core.errors import BlobNotFound, BlobRejected, TransportError, WireError
from psyche_core.interfaces.transport import Incoming, Opened
from psyche_core.p2p.message_log import LogLimits
from psyche_core.testing.transport import connected, received, until
from psyche_core.wire.frames import FrameDecoder, frame
from psyche_core.wire.messages import Finished, seal, unseal
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.addresses.peer_address import PeerAddress
from psyche_p2p_quic.blobs.frames import BLOB_HEAD_BYTES, BLOB_REQUEST_BYTES, BlobHead, BlobRequest
from psyche_p2p_quic.connections import control_frames
from psyche_p2p_quic.connections.control_frames import Hello, IHave, Message, Ping
from psyche_p2p_quic.endpoint.endpoint import Endpoint
from psyche_p2p_quic.endpoint.links import Link, LinkLost, Stream
from psyche_p2p_quic.settings import QuicSettings
from psyche_p2p_quic.transport import QuicTransport

pytestmark = pytest.mark.quic

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


async def ended(stream: Stream) -> None:
    """Wait until the other side has ended the connection of this stream."""
    with anyio.fail_after(20), suppress(LinkLost):
        while await stream.read(10**5):
            pass


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x05hello",
        (2**31).to_bytes(4, "big") + b"x",
        b"\x00\x00\x00\x00",
        frame(b"\xff" * 100, limit=1000),
        framed(Hello("run", b"instance")),
        frame(b"\x9b" + b"\xff" * 8, limit=1000),
        frame(b"\x81" * 5000, limit=10**4),
    ],
    ids=["garbage", "huge length", "empty frame", "not CBOR", "second hello", "huge array", "deep nesting"],
)
async def test_garbage_costs_its_sender_the_connection_and_nobody_else_anything(data: bytes) -> None:
    async with world() as (victim, friend, rogue):
        link, stream = await rogue.greeted(victim)
        await until(lambda: rogue.peer_id in victim.stats.peers)
        await stream.write(data)
        await ended(stream)
        assert "closed by peer" in link.close_reason
        await until(lambda: rogue.peer_id not in victim.stats.peers)
        with pytest.raises((LinkLost, AssertionError)):  # refused while the penalty lasts
            await rogue.greeted(victim)
        assert set(victim.stats.peers) == {friend.peer_id}
        await honest_pair_works(victim, friend)


@pytest.mark.parametrize("hello", [Hello("another run", b"instance"), Message(1, b"no hello", False)])
async def test_a_wrong_hello_is_refused(hello: Hello | None) -> None:
    async with world() as (victim, friend, rogue):
        with pytest.raises((LinkLost, AssertionError)):
            await rogue.greeted(victim, hello=hello)
        assert rogue.peer_id not in victim.stats.peers
        await honest_pair_works(victim, friend)


async def test_a_flood_of_messages_ends_at_the_share() -> None:
    async with world() as (victim, friend, rogue):
        link, stream = await rogue.greeted(victim)
        with suppress(LinkLost):
            for n in range(500):
                await stream.write(framed(Message(1, b"flood %d" % n, False)))
        await ended(stream)
        assert "share" in link.close_reason
        await friend.broadcast(b"end of flood", tag=1)
        got = set()
        while b"end of flood" not in got:
            got.add((await received(victim, 1))[0].message)
        floods = [message for message in got if message.startswith(b"flood")]
        assert 0 < len(floods) <= 100
        assert friend.peer_id in victim.stats.peers


async def test_who_passes_a_flood_on_keeps_its_connection() -> None:
    async with world() as (victim, friend, rogue):
        _, stream = await rogue.greeted(victim)
        for n in range(SETTINGS.log.own_messages):
            await stream.write(framed(Message(1, b"flood %d" % n, False)))
        await received(friend, 100)  # only through the victim, by comparison of what they hold
        assert victim.peer_id in friend.stats.peers


NO_BEATS = replace(SETTINGS, heartbeat_seconds=3600.0)
"""Nobody compares what is live: what a peer does not get at once it never gets."""


async def test_who_an_author_leaves_out_hears_of_its_message_from_others_without_a_comparison() -> None:
    async with world(settings=NO_BEATS) as (victim, friend, rogue):
        _, stream = await rogue.greeted(victim)
        await rogue.greeted(friend)
        for n in range(20):
            await stream.write(framed(Message(1, b"not for you %d" % n, False)))
            assert [got.message for got in await received(friend, 1)] == [b"not for you %d" % n]


async def test_who_tells_of_messages_and_keeps_them_does_not_keep_others_from_being_asked() -> None:
    async with world(settings=NO_BEATS) as (victim, friend, rogue):
        _, stream = await rogue.greeted(victim)
        message_id = hashlib.sha256(b"kept back").digest()
        await stream.write(framed(IHave((message_id[:16],))))
        _, other = await rogue.greeted(friend)
        await other.write(framed(Message(1, b"kept back", False)))
        assert [got.message for got in await received(victim, 1)] == [b"kept back"]


async def test_who_tells_of_a_message_three_times_and_keeps_it_does_not_keep_others_from_being_asked() -> None:
    """It counted as three members that had been asked in vain, and nobody else was."""
    async with world(settings=NO_BEATS) as (victim, friend, rogue):
        _, stream = await rogue.greeted(victim)
        prefix = hashlib.sha256(b"kept back").digest()[:16]
        for _ in range(3):
            await stream.write(framed(IHave((prefix,) * 3)))
        _, other = await rogue.greeted(friend)
        await other.write(framed(Message(1, b"kept back", False)))
        assert [got.message for got in await received(victim, 1)] == [b"kept back"]


# ------------------------------------------------------------------------------------------- what is passed on, checked

INSTANCE = b"i" * 32


def said(key: SecretKey, number: int) -> bytes:
    """A message that a member signs."""
    return seal(key, INSTANCE, Finished(1, number, 0))


def content(incoming: Incoming) -> Any:
    assert incoming.opened is not None
    return incoming.opened.content


@asynccontextmanager
async def checking_world() -> AsyncIterator[tuple[QuicTransport, QuicTransport, Rogue, Link, Stream]]:
    """As `world`, with messages checked, as clients have them; the rogue is greeted by the victim and keeps that connection."""
    async with world() as (victim, friend, rogue):
        for honest in (victim, friend):
            honest.check_messages(lambda message: Opened(*unseal(message, run=INSTANCE)))
        link, stream = await rogue.greeted(victim)
        await until(lambda: rogue.peer_id in victim.stats.peers)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk, stream)
            yield victim, friend, rogue, link, stream
            tasks.cancel_scope.cancel()


async def test_junk_is_passed_on_by_nobody_and_costs_who_wrote_it_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    """Each of us sent it to all others, and was named in their logs."""
    caplog.set_level(logging.WARNING)
    async with checking_world() as (victim, friend, rogue, link, stream):
        sent = victim.stats.bytes_sent
        with suppress(LinkLost):
            for n in range(500):
                await stream.write(framed(Message(1, b"%03d" % n * 1000, True)))
        await ended(stream)
        assert "3 false messages" in link.close_reason
        await friend.broadcast(said(friend._key, 1), tag=1)
        await victim.broadcast(said(victim._key, 2), tag=1)
        assert [content(got) for got in await received(victim, 1)] == [Finished(1, 1, 0)]
        assert [(got.via, content(got)) for got in await received(friend, 1)] == [(victim.peer_id, Finished(1, 2, 0))]
        assert victim.stats.bytes_sent - sent < 10_000
        with pytest.raises((LinkLost, AssertionError)):  # refused while the penalty lasts
            await rogue.greeted(victim)
        assert friend.peer_id in victim.stats.peers
        assert victim.peer_id in friend.stats.peers
    assert len(caplog.records) == 1


async def test_what_a_member_signed_is_passed_on_and_what_a_made_up_key_signed_is_not() -> None:
    async with checking_world() as (victim, friend, rogue, link, stream):
        for n in range(20):
            await stream.write(framed(Message(1, said(SecretKey.generate(), n), True)))
        await stream.write(framed(Message(1, said(rogue.key, 100), False)))
        got = await received(victim, 21)
        assert {content(incoming).height for incoming in got} == {*range(20), 100}
        assert [content(incoming) for incoming in await received(friend, 1)] == [Finished(1, 100, 0)]
        await stream.write(framed(Ping(1, bytes(32))))  # it compares what it holds with us, and is given nothing either
        with anyio.move_on_after(5 * SETTINGS.heartbeat_seconds):
            pytest.fail(f"passed on: {await friend.receive()}")
        assert link.close_reason == "", "who learned of a new member before us does the same"


async def test_more_open_streams_than_allowed_cost_the_connection() -> None:
    async with world() as (victim, friend, rogue):
        link, stream = await rogue.greeted(victim)
        opened = []
        for _ in range(SETTINGS.streams_served + 1):
            opened.append(await link.open())
            with suppress(LinkLost):
                await opened[-1].write(b"\1")
        await ended(stream)
        assert "more than 4 streams" in link.close_reason
        await honest_pair_works(victim, friend)


async def test_a_few_streams_left_open_are_given_up() -> None:
    async with world() as (victim, friend, rogue):
        link, stream = await rogue.greeted(victim)
        opened = [await link.open() for _ in range(SETTINGS.streams_served)]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk, stream)
            for half in opened:
                await half.write(BlobRequest(b"h" * 32, 1).encode()[:-1])
            await honest_pair_works(victim, friend)
            for half in opened:
                await ended(half)
            assert link.close_reason == ""  # slow is no offence
            tasks.cancel_scope.cancel()


async def test_a_malformed_blob_request_costs_the_connection() -> None:
    async with world() as (victim, friend, rogue):
        link, stream = await rogue.greeted(victim)
        asking = await link.open()
        await asking.write(b"\7" * 100)
        await ended(stream)
        assert "blob request" in link.close_reason
        await honest_pair_works(victim, friend)


async def test_a_one_way_stream_costs_the_connection() -> None:
    async with world() as (victim, friend, rogue):
        link, stream = await rogue.greeted(victim)
        one_way = await link._connection.open_uni()
        await one_way.write_all(b"x")
        await ended(stream)
        assert "one-way stream" in link.close_reason
        await honest_pair_works(victim, friend)


async def test_a_stranger_is_closed_at_once_and_told_nothing() -> None:
    async with world() as (victim, friend, rogue):
        await victim.set_peers({friend.peer_id: friend.address})
        await victim.broadcast(b"secret", tag=1)
        link = await rogue.link(victim)
        told = b""
        with suppress(LinkLost):
            stream = await link.open()
            await stream.write(framed(Hello("run", b"instance")))
            told = await stream.read(1000)
        assert told == b""
        assert "not a member" in link.close_reason
        await honest_pair_works(victim, friend)


async def test_a_removed_member_is_disconnected() -> None:
    async with world() as (victim, friend, rogue):
        link, stream = await rogue.greeted(victim)
        await until(lambda: rogue.peer_id in victim.stats.peers)
        await victim.set_peers({friend.peer_id: friend.address})
        await ended(stream)
        assert "not a member" in link.close_reason
        assert friend.peer_id in victim.stats.peers


async def test_many_connections_of_one_key_leave_one() -> None:
    async with world() as (victim, friend, rogue):
        links = [await rogue.link(victim) for _ in range(12)]
        streams = []
        for link in links:
            with suppress(TransportError):
                streams.append(await link.open())
                await streams[-1].write(framed(Hello("run", b"instance")))
        await until(lambda: sum(not link.close_reason for link in links) <= 1)
        await honest_pair_works(victim, friend)


async def test_a_peer_that_says_nothing_is_taken_for_dead() -> None:
    async with world() as (victim, friend, rogue):
        link, stream = await rogue.greeted(victim)
        await ended(stream)
        assert "nothing was received" in link.close_reason
        assert friend.peer_id in victim.stats.peers


async def test_a_peer_that_does_not_read_is_given_up() -> None:
    async with world() as (victim, friend, rogue):
        _, stream = await rogue.greeted(victim)
        await until(lambda: rogue.peer_id in victim.stats.peers)  # the hello is answered a little before

        async def ping() -> None:
            with suppress(LinkLost):
                while True:
                    await stream.write(framed(control_frames.Ping(1, None)))
                    await anyio.sleep(0.02)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ping)
            number = 0
            while rogue.peer_id in victim.stats.peers:
                await victim.broadcast(number.to_bytes(4, "big") * 4000, tag=1)
                await received(friend, 1)
                number += 1
        assert number > 10
        assert friend.peer_id in victim.stats.peers


# ------------------------------------------------------------------------------------------------------- false sources


async def answer_streams(link: Link, answer: Callable[[Stream], Awaitable[None]], count: int = 100) -> None:
    with suppress(LinkLost):
        for _ in range(count):
            stream = await link.accept()
            await stream.read_exactly(BLOB_REQUEST_BYTES)
            await answer(stream)


async def talk(stream: Stream) -> None:
    """Keep the connection alive."""
    with suppress(LinkLost):
        while True:
            await stream.write(framed(control_frames.Pong(1)))
            await anyio.sleep(0.05)


@asynccontextmanager
async def false_source(
    answer: Callable[[Stream], Awaitable[None]], *, settings: QuicSettings = SETTINGS
) -> AsyncIterator[tuple[QuicTransport, QuicTransport, Rogue, Link]]:
    """As `world`, with the rogue answering blob requests in its own way."""
    async with world(settings=settings) as (victim, friend, rogue):
        link, stream = await rogue.greeted(victim)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk, stream)
            tasks.start_soon(answer_streams, link, answer)
            await until(lambda: rogue.peer_id in victim.stats.peers)
            yield victim, friend, rogue, link
            tasks.cancel_scope.cancel()


async def wrong_bytes(stream: Stream) -> None:
    await stream.write(BlobHead(True, len(BLOB)).encode() + bytes(len(BLOB)))
    await stream.finish()


async def too_short(stream: Stream) -> None:
    await stream.write(BlobHead(True, len(BLOB)).encode() + BLOB[:1000])
    await stream.finish()


async def too_large(stream: Stream) -> None:
    await stream.write(BlobHead(True, 2**50).encode())


async def broken_head(stream: Stream) -> None:
    await stream.write(b"\xff" * 9)


async def silence(stream: Stream) -> None:
    await anyio.sleep_forever()  # holding the stream: dropping it would finish it


@pytest.mark.parametrize("answer", [wrong_bytes, too_short, too_large, broken_head, silence])
async def test_a_false_source_is_passed_over(answer: Callable[[Stream], Awaitable[None]]) -> None:
    async with false_source(answer) as (victim, friend, rogue, _):
        blob_hash = await friend.publish(BLOB, tag=1)
        sources = [rogue.peer_id, friend.peer_id]
        assert await victim.fetch(blob_hash, sources=sources, max_bytes=10**6, timeout=20, tag=1) == BLOB


async def test_a_source_that_is_silent_is_hedged_by_the_next_long_before_it_is_given_up() -> None:
    patient = replace(SETTINGS, stall_seconds=1000)
    async with false_source(silence, settings=patient) as (victim, friend, rogue, _):
        blob_hash = await friend.publish(BLOB, tag=1)
        sources = [rogue.peer_id, friend.peer_id]
        assert await victim.fetch(blob_hash, sources=sources, max_bytes=10**6, timeout=20, tag=1) == BLOB


async def test_who_had_nothing_is_asked_again_while_the_source_is_silent() -> None:
    """A liar gives its result to some only: they can give it to the others, but have it a moment later."""
    asked = []

    async def silent(stream: Stream) -> None:
        asked.append(stream)
        await silence(stream)

    patient = replace(SETTINGS, stall_seconds=1000, again_seconds=0.1)
    async with false_source(silent, settings=patient) as (victim, friend, rogue, _), anyio.create_task_group() as tasks:
        got = []

        async def fetch() -> None:
            blob_hash = hashlib.sha256(BLOB).digest()
            got.append(await victim.fetch(blob_hash, sources=[rogue.peer_id], max_bytes=10**6, timeout=40, tag=1))

        tasks.start_soon(fetch)
        await until(lambda: bool(asked))
        await anyio.sleep(3 * SETTINGS.hedge_seconds)  # the friend has been asked, and had nothing
        await friend.publish(BLOB, tag=1)
        await until(lambda: bool(got))
        assert got == [BLOB]
        assert len(asked) == 1


async def drip(stream: Stream) -> None:
    await stream.write(BlobHead(True, len(BLOB)).encode())
    for at in range(len(BLOB)):
        await stream.write(BLOB[at : at + 1])
        await anyio.sleep(SETTINGS.hedge_seconds / 4)


async def test_a_source_that_drips_is_hedged_by_the_next() -> None:
    """Each byte is progress; the whole blob would take an hour."""
    async with false_source(drip) as (victim, friend, rogue, _):
        blob_hash = await friend.publish(BLOB, tag=1)
        sources = [rogue.peer_id, friend.peer_id]
        assert await victim.fetch(blob_hash, sources=sources, max_bytes=10**6, timeout=20, tag=1) == BLOB


async def drip_as_progress(stream: Stream) -> None:
    """Twice as much as counts as progress, of a body as long as may be asked for."""
    await stream.write(BlobHead(True, 10**6).encode())
    while True:
        await stream.write(bytes(2 * SETTINGS.hedge_bytes))
        await anyio.sleep(SETTINGS.hedge_seconds)


async def test_a_source_that_drips_just_enough_is_hedged_by_the_next() -> None:
    """At 8 KB/s nobody else was ever asked, and an honest member that lacked the result was dropped."""
    patient = replace(SETTINGS, stall_seconds=1000)
    async with false_source(drip_as_progress, settings=patient) as (victim, friend, rogue, _):
        blob_hash = await friend.publish(BLOB, tag=1)
        sources = [rogue.peer_id, friend.peer_id]
        assert await victim.fetch(blob_hash, sources=sources, max_bytes=10**6, timeout=40, tag=1) == BLOB


async def test_who_had_nothing_is_asked_again_while_a_member_is_out_of_reach() -> None:
    """The trainer closed its connection to one member only: nobody else was asked a second time."""
    patient = replace(SETTINGS, again_seconds=0.1)
    async with world(settings=patient) as (victim, friend, _), anyio.create_task_group() as tasks:
        got = []

        async def fetch() -> None:
            got.append(await victim.fetch(hashlib.sha256(BLOB).digest(), sources=[], max_bytes=10**6, timeout=40, tag=1))

        tasks.start_soon(fetch)
        await anyio.sleep(2 * SETTINGS.hedge_seconds)  # the friend has been asked, and had nothing
        await friend.publish(BLOB, tag=1)
        await until(lambda: bool(got))
        assert got == [BLOB]


async def test_silent_sources_do_not_use_up_all_places() -> None:
    """As many as may be asked at once are silent: one of them is given up for the next."""
    lonely = replace(SETTINGS, stall_seconds=1000, hedge_sources=1)
    async with false_source(silence, settings=lonely) as (victim, friend, rogue, _):
        blob_hash = await friend.publish(BLOB, tag=1)
        sources = [rogue.peer_id, friend.peer_id]
        assert await victim.fetch(blob_hash, sources=sources, max_bytes=10**6, timeout=20, tag=1) == BLOB


async def test_wrong_bytes_alone_are_rejected_and_a_few_of_them_cost_the_connection() -> None:
    async with false_source(wrong_bytes) as (victim, friend, rogue, link):
        for n in range(SETTINGS.false_blobs):
            with pytest.raises(BlobRejected):
                await victim.fetch(bytes([n]) * 32, sources=[rogue.peer_id], max_bytes=10**6, timeout=20, tag=1)
        await until(lambda: rogue.peer_id not in victim.stats.peers)
        await until(lambda: "do not match" in link.close_reason)
        await honest_pair_works(victim, friend)


async def test_who_served_wrong_bytes_comes_last_from_then_on() -> None:
    asked = []

    async def wrong(stream: Stream) -> None:
        asked.append(stream)
        await wrong_bytes(stream)

    async with false_source(wrong) as (victim, friend, rogue, _):
        sources = [rogue.peer_id, friend.peer_id]
        for n in range(5):
            blob = b"%d" % n * 1000
            blob_hash = await friend.publish(blob, tag=1)
            assert await victim.fetch(blob_hash, sources=sources, max_bytes=10**6, timeout=20, tag=1, keep=False) == blob
        assert len(asked) == 1
        assert rogue.peer_id in victim.stats.peers


async def test_askers_that_do_not_read_hold_a_bounded_number_of_offered_blobs_in_memory() -> None:
    """And others are served meanwhile."""
    settings = replace(SETTINGS, offers_read_per_peer=2, streams_served=32, stall_seconds=20)
    large = bytes(8 * 2**20)
    reading, most = 0, 0

    def read() -> bytes:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        return large

    async with world(settings=settings) as (victim, friend, rogue):
        link, stream = await rogue.greeted(victim)
        blob_hash = hashlib.sha256(large).digest()
        await victim.offer(blob_hash, size=len(large), read=read, tag=1)
        opened = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk, stream)
            for _ in range(20):
                opened.append(await link.open())
                await opened[-1].write(BlobRequest(blob_hash, 2**40).encode())
                await opened[-1].finish()
            heads = [await half.read_exactly(BLOB_HEAD_BYTES) for half in opened[:1]]
            assert BlobHead.decode(heads[0]).length == len(large)
            served = await friend.fetch(blob_hash, sources=[victim.peer_id], max_bytes=2**40, timeout=20, tag=1, keep=False)
            assert served == large
            assert most <= 3, "two of the rogue and one of the friend"
            tasks.cancel_scope.cancel()
        link.close(0, "done")
        assert opened


async def test_a_silent_source_alone_is_not_found_within_the_timeout() -> None:
    async with false_source(silence) as (victim, _, rogue, _):
        with anyio.fail_after(10), pytest.raises(BlobNotFound):
            await victim.fetch(b"h" * 32, sources=[rogue.peer_id], max_bytes=10**6, timeout=0.3, tag=1)


def test_the_honest_blob_is_what_the_tests_think() -> None:
    assert len(BLOB) < 10**6
    assert hashlib.sha256(BLOB).digest() != hashlib.sha256(bytes(len(BLOB))).digest()
    with pytest.raises(WireError):
        BlobHead.decode(b"\xff" * 9)
