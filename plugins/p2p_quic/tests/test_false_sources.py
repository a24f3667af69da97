"""A source of blobs that lies, is silent or drips costs its askers little; askers that do not read cost the source little."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import anyio
import iroh
import pytest

from plugins.p2p_quic.tests.rogue import BLOB, SETTINGS, Rogue, honest_pair_works, talk, world
from psyche_core.errors import BlobNotFound, BlobRejected, WireError
from psyche_core.testing.transport import until
from psyche_p2p_quic.blobs.frames import BLOB_HEAD_BYTES, BLOB_REQUEST_BYTES, BlobHead, BlobRequest
from psyche_p2p_quic.endpoint.links import Link, LinkLost, Stream
from psyche_p2p_quic.settings import QuicSettings
from psyche_p2p_quic.transport import QuicTransport

pytestmark = pytest.mark.quic


# ------------------------------------------------------------------------------------------------------- false sources
async def answer_streams(link: Link, answer: Callable[[Stream], Awaitable[None]], count: int = 100) -> None:
    with suppress(LinkLost):
        for _ in range(count):
            stream = await link.accept()
            await stream.read_exactly(BLOB_REQUEST_BYTES)
            await answer(stream)


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


@pytest.mark.parametrize("wanted_by_all", [True, False])
async def test_only_what_all_want_is_waited_for_as_long_as_it_comes(wanted_by_all: bool) -> None:
    """It takes four seconds, in twenty parts."""

    async def steadily(stream: Stream) -> None:
        await stream.write(BlobHead(True, len(BLOB)).encode())
        for at in range(0, len(BLOB), len(BLOB) // 20):
            await stream.write(BLOB[at : at + len(BLOB) // 20])
            await anyio.sleep(0.2)
        await stream.finish()

    async with false_source(steadily, settings=replace(SETTINGS, hedge_bytes=1, stall_seconds=20)) as (victim, _, rogue, _):
        fetch = partial(victim.fetch, hashlib.sha256(BLOB).digest(), sources=[rogue.peer_id], max_bytes=10**6, tag=1)
        if wanted_by_all:
            assert await fetch(timeout=2, wanted_by_all=True) == BLOB
        else:
            with pytest.raises(BlobNotFound):
                await fetch(timeout=2)


def test_the_honest_blob_is_what_the_tests_think() -> None:
    assert len(BLOB) < 10**6
    assert hashlib.sha256(BLOB).digest() != hashlib.sha256(bytes(len(BLOB))).digest()
    with pytest.raises(WireError):
        BlobHead.decode(b"\xff" * 9)


# ------------------------------------------------------------------------------------------------ what is not wanted any more
async def test_when_an_asker_withdraws_what_the_library_has_taken_is_dropped() -> None:
    """It was sent to its end: on a slow line, requests that were withdrawn took more than half of the line."""
    large = bytes(5_000_000)
    begun = anyio.Event()
    dropped = []

    async def sends(stream: Stream) -> None:
        await stream.write(BlobHead(True, len(large)).encode() + large[:1000])
        begun.set()
        await stream.delivered()
        try:
            await stream._send.reset(1)
        except iroh.IrohError:
            dropped.append(True)  # there is nothing left to reset
        else:
            dropped.append(False)

    async with false_source(sends) as (victim, _, rogue, _):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                partial(
                    victim.fetch, hashlib.sha256(large).digest(), sources=[rogue.peer_id], max_bytes=len(large), timeout=60, tag=1
                )
            )
            await begun.wait()
            tasks.cancel_scope.cancel()
        await until(lambda: bool(dropped))
    assert dropped == [True]


@pytest.mark.parametrize("error", [MemoryError(), ValueError("a defect of its owner")])
async def test_an_offer_that_cannot_be_read_for_any_reason_is_absent_and_said_once(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection of who asked for it ended, with a traceback."""

    def read() -> bytes:
        raise error

    async with world() as (victim, friend, _):
        blob_hash = hashlib.sha256(BLOB).digest()
        await victim.offer(blob_hash, size=len(BLOB), read=read, tag=1)
        for _ in range(2):
            with pytest.raises(BlobNotFound):
                await friend.fetch(blob_hash, sources=[victim.peer_id], max_bytes=len(BLOB), timeout=5, tag=1)
        assert friend.peer_id in victim.stats.peers
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert type(error).__name__ in warnings[0]
