"""How often one peer may ask and connect, and how often it is spoken of in the log."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace

import anyio
import pytest

from plugins.p2p_quic.tests.rogue import SETTINGS, Rogue, framed, honest_pair_works, world
from psyche_core.errors import BlobNotFound
from psyche_core.testing.transport import until
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.blobs.frames import BLOB_HEAD_BYTES, BlobHead, BlobRequest
from psyche_p2p_quic.connections import per_peer
from psyche_p2p_quic.connections.control_frames import Hello
from psyche_p2p_quic.connections.per_peer import Remembered
from psyche_p2p_quic.connections.session import LARGE_BYTES
from psyche_p2p_quic.endpoint.links import Link, LinkLost
from psyche_p2p_quic.transport import QuicTransport


def test_what_is_kept_for_a_peer_is_bounded_and_the_least_used_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_peer, "REMEMBERED_PEERS", 2)
    kept = Remembered(list[int])
    kept.of(b"one").append(1)
    kept.of(b"two").append(2)
    kept.of(b"one")
    kept.of(b"three")
    assert (kept.of(b"one"), kept.of(b"two")) == ([1], [])


async def asked(link: Link, blob_hash: bytes) -> BlobHead:
    """The head of a blob's answer."""
    stream = await link.open()
    await stream.write(BlobRequest(blob_hash, 10**6).encode())
    await stream.finish()
    return BlobHead.decode(await stream.read_exactly(BLOB_HEAD_BYTES))


async def gone(link: Link, rogue: Rogue, victim: QuicTransport) -> None:
    """End a link and wait until the other side knows."""
    link.close(0, "bye")
    await until(lambda: rogue.peer_id not in victim.stats.peers)


@pytest.mark.quic
async def test_who_asks_for_what_is_not_there_is_answered_at_a_rate_also_on_its_next_connection() -> None:
    settings = replace(SETTINGS, requests_per_second=20, request_burst=5)
    async with world(settings=settings) as (victim, friend, rogue):
        began = anyio.current_time()
        for number in range(2):
            link, _ = await rogue.greeted(victim)
            for count in range(10):
                assert not (await asked(link, bytes((number, count)) * 16)).found
            await gone(link, rogue, victim)
        assert anyio.current_time() - began >= (20 - 1 - settings.request_burst) / settings.requests_per_second
        await honest_pair_works(victim, friend)


@pytest.mark.quic
async def test_who_fetches_a_model_in_pieces_does_not_wait() -> None:
    settings = replace(SETTINGS, requests_per_second=0.001, request_burst=5)
    async with world(settings=settings) as (victim, friend, _):
        pieces = [bytes((number,)) * LARGE_BYTES for number in range(30)]
        for piece in pieces:
            blob_hash = await victim.publish(piece, tag=1)
            blob = await friend.fetch(blob_hash, sources=[victim.peer_id], max_bytes=10**6, timeout=20, tag=1)
            assert blob == piece


@pytest.mark.quic
async def test_over_the_rate_an_honest_member_waits_and_gets_its_blob() -> None:
    settings = replace(SETTINGS, requests_per_second=20, request_burst=1)
    async with world(settings=settings) as (victim, friend, _):

        async def miss(number: int) -> None:
            with pytest.raises(BlobNotFound):
                await friend.fetch(bytes((number,)) * 32, sources=[victim.peer_id], max_bytes=100, timeout=2, tag=1)

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(miss, number)
            blob_hash = await victim.publish(b"there", tag=1)
            assert await friend.fetch(blob_hash, sources=[victim.peer_id], max_bytes=100, timeout=20, tag=1) == b"there"
        await honest_pair_works(victim, friend)


@pytest.mark.quic
async def test_who_connects_again_and_again_is_refused_with_a_sentence_and_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world(settings=replace(SETTINGS, session_burst=3, sessions_per_minute=0.01)) as (victim, friend, rogue):
        for _ in range(3):
            link, _ = await rogue.greeted(victim)
            await gone(link, rogue, victim)
        everybody = {friend.peer_id: friend.address, rogue.peer_id: b""}
        await victim.set_peers({friend.peer_id: friend.address})
        await victim.set_peers(everybody)  # leaving and coming back begins nothing anew
        for _ in range(3):
            link = await rogue.link(victim)
            with pytest.raises(LinkLost):
                await link.accept()
            assert "you connect too often; try again in a minute" in link.close_reason
        assert rogue.peer_id not in victim.stats.peers
        said = [record for record in caplog.records if "connects again and again" in record.getMessage()]
        assert [(record.levelno, record.getMessage()[:13]) for record in said] == [
            (logging.WARNING, f"peer {rogue.peer_id[:4].hex()}")
        ]
        await honest_pair_works(victim, friend)


@pytest.mark.quic
async def test_who_is_dialled_and_ends_the_connection_each_time_is_dialled_at_a_rate() -> None:
    settings = replace(SETTINGS, session_burst=2, sessions_per_minute=600, retry_seconds=0.01, dial_grace_seconds=0)
    async with world(settings=settings, dialled=True) as (victim, friend, rogue):
        began, times = anyio.current_time(), 0
        while times < 8:
            arrival = await rogue.endpoint.arrival()
            assert arrival is not None
            link = await arrival.complete()
            stream = await link.accept()
            await stream.read(1000)
            await stream.write(framed(Hello("run", b"instance")))
            if link.peer == victim.peer_id:
                await until(lambda: rogue.peer_id in victim.stats.peers)
                times += 1
            link.close(9, "a loss")
        assert anyio.current_time() - began >= (8 - 1 - settings.session_burst) / 10
        await honest_pair_works(victim, friend)


@pytest.mark.quic
async def test_who_publishes_nonsense_again_and_again_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    def told_of(peer: bytes) -> bool:
        return f"peer {peer.hex()} cannot be dialled" in caplog.text

    async with QuicTransport("run", SecretKey.generate()) as one:
        for number in range(5):
            await one.set_peers({b"n" * 32: b"\xff nonsense %d" % number, bytes((number,)) * 32: b"\xff"})
            await until(functools.partial(told_of, bytes((number,)) * 4))
            await one.set_peers({})
    assert caplog.text.count(f"peer {b'nnnn'.hex()} cannot be dialled") == 1
