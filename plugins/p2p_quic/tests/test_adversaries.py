"""A real endpoint that breaks the rules: only its own connection suffers."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import anyio
import pytest

from plugins.p2p_quic.tests.rogue import SETTINGS, Rogue, framed, honest_pair_works, talk, world
from psyche_core.errors import TransportError
from psyche_core.interfaces.transport import Incoming, Opened
from psyche_core.testing.transport import received, until
from psyche_core.wire import codec
from psyche_core.wire.frames import frame
from psyche_core.wire.messages import Finished, seal, unseal
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.blobs.frames import BlobRequest
from psyche_p2p_quic.connections import control_frames
from psyche_p2p_quic.connections.control_frames import Hello, IHave, Message, Ping
from psyche_p2p_quic.endpoint.links import Link, LinkLost, Stream
from psyche_p2p_quic.transport import QuicTransport

pytestmark = pytest.mark.quic


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


@pytest.mark.parametrize("version", [2, 9])
async def test_a_hello_of_another_version_is_refused_with_a_sentence_that_names_both(version: int) -> None:
    async with world() as (victim, friend, rogue):
        link = await rogue.link(victim)
        stream = await link.open()
        await stream.write(frame(codec.encode([0, version, "run", b"instance"]), limit=100))
        await ended(stream)
        expected = f"a hello of transport version {version} came to a program of version 3; update the older one"
        assert expected in link.close_reason
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
