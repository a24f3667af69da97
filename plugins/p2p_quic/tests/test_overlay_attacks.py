"""One neighbour in an overlay that takes up what others need: turns, places to receive, time. Real endpoints."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from dataclasses import replace

import anyio
import pytest

from plugins.p2p_quic.tests.false_neighbour import answer_all, beside_a_false_neighbour, with_a_false_neighbour
from plugins.p2p_quic.tests.overlay_members import SEED, SETTINGS, graph, members_of, mesh_of
from plugins.p2p_quic.tests.rogue import Rogue, framed
from psyche_core.p2p import uploads
from psyche_core.testing.transport import until
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.blobs.exchange import BlobExchange
from psyche_p2p_quic.blobs.frames import BLOB_HEAD_BYTES, BlobHead, BlobRequest
from psyche_p2p_quic.connections.control_frames import Have
from psyche_p2p_quic.endpoint.endpoint import Endpoint
from psyche_p2p_quic.endpoint.links import Link, LinkLost, Stream
from psyche_p2p_quic.transport import QuicTransport

pytestmark = pytest.mark.quic

SIZE = 3_000_000
"""Of so many bytes a member sends two results at once."""

LARGE = 12_000_000
"""More than a peer can have on its way without reading."""

HOPS_ONLY = replace(SETTINGS, visits=0, announcement_seconds=60.0, holder_seconds=60.0)


def exchange_of(member: QuicTransport) -> BlobExchange:
    assert member._blobs is not None
    return member._blobs


def false_one(victim: QuicTransport, members: list[QuicTransport]) -> bytes:
    """The key of the neighbour that is none of these."""
    (found,) = {*victim.stats.peers} - {member.peer_id for member in members}
    return found


async def ask(link: Link, blob_hash: bytes, *, most: int = LARGE) -> Stream:
    stream = await link.open()
    await stream.write(BlobRequest(blob_hash, most).encode())
    await stream.finish()
    return stream


async def test_who_takes_turns_and_withdraws_them_late_silences_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It always has two turns, and two requests that wait. An honest neighbour got some results before, it got none."""
    monkeypatch.setattr(uploads, "WASTED_SECONDS", 0.05)
    async with beside_a_false_neighbour(replace(HOPS_ONLY, turn_seconds=3600.0)) as (victim, members, link, _):
        blobs = [os.urandom(SIZE) for _ in range(4)]
        honest = next(member for member in members if member.peer_id in victim.stats.peers)
        for number in range(4):
            blob_hash = await victim.publish(b"%d" % number, tag=1)
            await honest.fetch(blob_hash, sources=[], max_bytes=SIZE, timeout=60, tag=1, wanted_by_all=True)
        hashes = [await victim.publish(blob, tag=1) for blob in blobs]
        holds = anyio.Event()

        async def hold(blob_hash: bytes) -> None:
            while True:
                stream = await ask(link, blob_hash)
                try:
                    head = BlobHead.decode(await stream.read_exactly(BLOB_HEAD_BYTES))
                    if head.found:
                        holds.set()
                    await anyio.sleep(0.2 if head.found else 0.02)
                except LinkLost:
                    return
                await stream.abandon()

        got = []

        async def fetch(blob_hash: bytes) -> None:
            got.append(await honest.fetch(blob_hash, sources=[], max_bytes=SIZE, timeout=20, tag=1, wanted_by_all=True))

        async with anyio.create_task_group() as holding:
            for blob_hash in hashes:
                holding.start_soon(hold, blob_hash)
            await holds.wait()
            async with anyio.create_task_group() as tasks:
                for blob_hash in hashes:
                    tasks.start_soon(fetch, blob_hash)
            holding.cancel_scope.cancel()
        assert sorted(got) == sorted(blobs)


async def test_who_asks_for_heads_of_one_result_and_for_all_others_keeps_it_from_nobody() -> None:
    """Six downloads at once, and two turns: somebody always waits for what was sent less often by what the heads say."""
    async with beside_a_false_neighbour(HOPS_ONLY) as (victim, members, link, _):
        others = [await victim.publish(os.urandom(SIZE), tag=1) for _ in range(6)]
        blob = os.urandom(SIZE)
        blob_hash = await victim.publish(blob, tag=1)
        for _ in range(1000):
            head = BlobHead.decode(await (await ask(link, blob_hash, most=0)).read_exactly(BLOB_HEAD_BYTES))
            assert head == BlobHead(True, SIZE)
        started = anyio.Event()

        async def take(name: bytes) -> None:
            while True:
                stream = await ask(link, name)
                if BlobHead.decode(await stream.read_exactly(BLOB_HEAD_BYTES)).found:
                    await stream.read_exactly(SIZE)
                    started.set()
                else:
                    await anyio.sleep(0.02)  # its turn before has not ended yet

        honest = next(member for member in members if member.peer_id in victim.stats.peers)
        async with anyio.create_task_group() as taking:
            for name in others:
                taking.start_soon(take, name)
            await started.wait()
            assert await honest.fetch(blob_hash, sources=[], max_bytes=SIZE, timeout=15, tag=1, wanted_by_all=True) == blob
            taking.cancel_scope.cancel()


async def trickles(stream: Stream) -> None:
    """Ten thousand bytes a second: more than the least that a source must send, and five minutes for all."""
    await stream.write(BlobHead(True, SIZE).encode())
    while True:
        await stream.write(bytes(1000))
        await anyio.sleep(0.1)


async def test_who_trickles_keeps_no_place_from_results_that_others_have() -> None:
    """It announces all and is asked first, at a time when nothing is known of how fast results come."""
    settings = replace(HOPS_ONLY, hedge_bytes=64, stall_seconds=3600.0, hedge_rest_seconds=0.3)
    async with with_a_false_neighbour(trickles, settings) as (victim, members, stream, asked):
        blobs = [os.urandom(SIZE) for _ in range(6)]
        hashes = [hashlib.sha256(blob).digest() for blob in blobs]
        got = []

        async def fetch(blob_hash: bytes) -> None:
            got.append(await victim.fetch(blob_hash, sources=[], max_bytes=SIZE, timeout=60, tag=1, wanted_by_all=True))

        async with anyio.create_task_group() as tasks:
            await stream.write(framed(Have(tuple(blob_hash[:16] for blob_hash in hashes))))
            for blob_hash in hashes:
                tasks.start_soon(fetch, blob_hash)
            await asked.wait()
            honest = next(member for member in members if member.peer_id in victim.stats.peers)
            for blob in blobs:
                await honest.publish(blob, tag=1)
        assert sorted(got) == sorted(blobs)
        downloads = exchange_of(victim).results._downloads
        assert len(downloads._late) == 1
        exchange_of(victim).results.begin_epoch(SEED + 1)
        assert not downloads._late, "in the next epoch it may have recovered"


async def test_who_closes_its_connection_in_the_middle_of_a_result_is_late_for_the_epoch() -> None:
    """A neighbour that announced the result too late gives it."""
    async with beside_a_false_neighbour(HOPS_ONLY) as (victim, members, link, stream):
        peer = false_one(victim, members)
        blob, got = os.urandom(SIZE), []
        blob_hash = hashlib.sha256(blob).digest()
        downloads = exchange_of(victim).results._downloads

        async def closes(answer: Stream) -> None:
            await answer.write(BlobHead(True, SIZE).encode() + blob[: SIZE // 2])
            await until(lambda: peer in [wanted.source for wanted in downloads._wanted.values()])
            link.close(0, "bye")

        async def fetch() -> None:
            got.append(await victim.fetch(blob_hash, sources=[], max_bytes=SIZE, timeout=60, tag=1, wanted_by_all=True))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer_all, link, closes, anyio.Event())
            await stream.write(framed(Have((blob_hash[:16],))))
            tasks.start_soon(fetch)
            await until(lambda: peer not in victim.stats.peers)
            honest = next(member for member in members if member.peer_id in victim.stats.peers)
            await honest.publish(blob, tag=1)
        assert got == [blob]
        assert downloads._late == {peer}


async def test_who_says_that_it_has_not_what_it_announced_ends_no_waiting_for_others() -> None:
    async def absent(answer: Stream) -> None:
        await answer.write(BlobHead(False, 0).encode())
        await answer.finish()

    async with with_a_false_neighbour(absent, HOPS_ONLY) as (victim, members, stream, asked):
        blob, got = os.urandom(SIZE), []
        blob_hash = hashlib.sha256(blob).digest()
        results = exchange_of(victim).results

        async def fetch() -> None:
            got.append(await victim.fetch(blob_hash, sources=[], max_bytes=SIZE, timeout=60, tag=1, wanted_by_all=True))

        async with anyio.create_task_group() as tasks:
            await stream.write(framed(Have((blob_hash[:16],))))
            tasks.start_soon(fetch)
            await asked.wait()
            await until(lambda: results._downloads._failed != set())
            await anyio.sleep(0.3)  # several looks
            honest = next(member for member in members if member.peer_id in victim.stats.peers)
            await honest.publish(blob, tag=1)
        assert got == [blob]


async def test_an_announcement_costs_a_look_at_what_it_names_only_and_many_are_read_slowly() -> None:
    settings = replace(HOPS_ONLY, frames_per_second=200.0, frame_burst=17)
    async with beside_a_false_neighbour(settings) as (victim, _, _, stream):
        results = exchange_of(victim).results
        wanted, named = os.urandom(32), [os.urandom(16) for _ in range(10)]
        looked_at = []
        begin = results._downloads.begin

        def watched(*args: object, **kwargs: object) -> tuple[bytes, bytes] | None:
            looked_at.append(kwargs["among"])
            return begin(*args, **kwargs)  # type: ignore[arg-type]

        async with anyio.create_task_group() as tasks:

            async def fetch() -> None:
                await victim.fetch(wanted, sources=[], max_bytes=SIZE, timeout=80, tag=1, wanted_by_all=True)

            tasks.start_soon(fetch)
            await until(lambda: wanted[:16] in results._downloads)
            results._downloads.begin = watched  # type: ignore[method-assign]
            began = anyio.current_time()
            await stream.write(b"".join(framed(Have((name,))) for name in named))
            await until(lambda: results._holders.of(named[-1]) != ())
            assert anyio.current_time() - began >= 0.6, "nine of them wait for 16 frames' time each"
            assert looked_at == [(name,) for name in named]
            tasks.cancel_scope.cancel()


async def test_an_announcement_of_nothing_ends_the_connection() -> None:
    async with beside_a_false_neighbour(SETTINGS) as (victim, members, link, stream):
        peer = false_one(victim, members)
        await stream.write(framed(Have(())))
        with anyio.fail_after(20):
            await link.closed()
        await until(lambda: peer not in victim.stats.peers)


async def test_a_request_that_comes_again_after_its_turn_costs_no_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with beside_a_false_neighbour(replace(SETTINGS, turn_seconds=0.05, stall_seconds=60.0)) as (victim, members, link, _):
        blob = os.urandom(LARGE)
        blob_hash = await victim.publish(blob, tag=1)
        streams = []
        for _ in range(2):
            streams.append(await ask(link, blob_hash))
            assert BlobHead.decode(await streams[-1].read_exactly(BLOB_HEAD_BYTES)).found
            await until(lambda: not exchange_of(victim)._turns._queue._sending, what="a turn did not end")
        session = mesh_of(victim).sessions[false_one(victim, members)]
        assert session._served == 2, "both are sent still"
        with caplog.at_level(logging.ERROR):
            for stream in streams:
                await stream.abandon()
            await until(lambda: not exchange_of(victim)._turns._begun, what="an abandoned request is still answered")
            last = await ask(link, blob_hash)
            assert BlobHead.decode(await last.read_exactly(BLOB_HEAD_BYTES)).found
            assert await last.read_exactly(LARGE) == blob
        assert not caplog.records
        assert not session.closing


async def test_who_waits_for_a_place_is_let_in_when_there_is_one_however_often_it_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A guest has the only place. Another member comes more often than it could connect."""
    keys = [SecretKey.generate() for _ in range(12)]
    others = [key.public for key in keys]
    settings = replace(SETTINGS, guests=1, visits=1, guest_idle_seconds=3600.0, retry_most_seconds=0.2, silent_beats=10_000)
    async with members_of(6, settings=replace(settings, session_burst=6, sessions_per_minute=0.001), others=others) as members:
        victim, overlay = members[0], graph(members, others=others)
        key = next(key for key in keys if key.public not in overlay.neighbours(victim.peer_id))
        visitor = next(member for member in members if member.peer_id not in (victim.peer_id, *victim.stats.peers))
        guests, refused = mesh_of(victim).guests, Counter[bytes]()
        admit = guests.admit

        def counted(peer: bytes, now: float) -> tuple[bool, bytes | None]:
            admitted, leaves = admit(peer, now)
            refused[peer] += not admitted
            return admitted, leaves

        monkeypatch.setattr(guests, "admit", counted)
        part = await victim.publish(b"a part of a share", tag=1)
        got = []

        async def fetch() -> None:
            got.append(await visitor.fetch(part, sources=[victim.peer_id], max_bytes=100, timeout=80, tag=1))

        rogue = Rogue(await Endpoint.bind(key.seed, interface="127.0.0.1", port=0), key)
        try:
            link, _ = await rogue.greeted(victim)
            await until(lambda: key.public in victim.stats.peers)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fetch)
                await until(lambda: refused[visitor.peer_id] >= 10, what="nobody was refused")
                link.close(0, "the test is over")
        finally:
            await rogue.endpoint.aclose(timeout=1)
        assert got == [b"a part of a share"]
