"""Results in an overlay: they come in several hops, and holders that lie, stall or are slow are given up. Real endpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import anyio
import pytest

from plugins.p2p_quic.tests.false_neighbour import with_a_false_neighbour
from plugins.p2p_quic.tests.overlay_members import DEGREE, SETTINGS, graph, members_of, mesh_of
from plugins.p2p_quic.tests.rogue import BLOB, framed
from psyche_core.errors import BlobNotFound
from psyche_core.p2p.patience import VOICES
from psyche_core.testing.transport import until
from psyche_p2p_quic.blobs.frames import BlobHead
from psyche_p2p_quic.blobs.upload_turns import UploadTurns
from psyche_p2p_quic.connections import control_frames
from psyche_p2p_quic.connections.control_frames import Have
from psyche_p2p_quic.endpoint.links import LinkLost, Stream
from psyche_p2p_quic.transport import QuicTransport

pytestmark = pytest.mark.quic

LARGE = 22_000_000
HOPS_ONLY = replace(SETTINGS, visits=0, announcement_seconds=60.0, holder_seconds=60.0)
"""Nobody is dialled that is no neighbour, and nobody is asked that has announced nothing."""


async def all_fetch(members: list[QuicTransport], blob_hash: bytes, author: QuicTransport) -> None:
    async def fetch(member: QuicTransport) -> None:
        got = await member.fetch(blob_hash, sources=[author.peer_id], max_bytes=len(BLOB), timeout=60, tag=1, wanted_by_all=True)
        assert got == BLOB

    async with anyio.create_task_group() as tasks:
        for member in members:
            if member is not author:
                tasks.start_soon(fetch, member)


async def test_a_result_reaches_all_though_most_are_not_connected_with_its_author() -> None:
    async with members_of(10, settings=HOPS_ONLY) as members:
        author = members[0]
        blob_hash = await author.publish(BLOB, tag=1)
        await all_fetch(members, blob_hash, author)
        assert set(author.stats.peers) == set(graph(members).neighbours(author.peer_id))
        assert author.stats.bytes_sent < (DEGREE + 1) * len(BLOB), "its neighbours passed it on"


async def test_who_connects_late_is_told_what_was_published_before() -> None:
    async with members_of(10, settings=HOPS_ONLY) as members:
        author, *others = members
        blob_hash = await author.publish(BLOB, tag=1)
        neighbour = next(member for member in others if member.peer_id in author.stats.peers)
        await anyio.sleep(0.2)  # what it was told now is forgotten with the connection
        sessions = mesh_of(neighbour).sessions
        before = sessions[author.peer_id]
        before.close(0, "a test ends it")
        await until(lambda: sessions.get(author.peer_id) not in (None, before))
        assert await neighbour.fetch(blob_hash, sources=[], max_bytes=len(BLOB), timeout=30, tag=1, wanted_by_all=True) == BLOB


async def test_the_author_is_dialled_when_nobody_announces_its_result() -> None:
    """Its neighbours want it not, so they have it not."""
    async with members_of(10, settings=replace(SETTINGS, announcement_seconds=0.2)) as members:
        author = members[0]
        far = next(member for member in members[1:] if member.peer_id not in author.stats.peers)
        blob_hash = await author.publish(BLOB, tag=1)
        assert (
            await far.fetch(blob_hash, sources=[author.peer_id], max_bytes=len(BLOB), timeout=60, tag=1, wanted_by_all=True)
            == BLOB
        )


async def test_what_nobody_has_is_not_found_in_time() -> None:
    async with members_of(7, settings=HOPS_ONLY) as members:
        with pytest.raises(BlobNotFound):
            await members[0].fetch(
                hashlib.sha256(b"nobody").digest(), sources=[], max_bytes=10, timeout=0.5, tag=1, wanted_by_all=True
            )


# --------------------------------------------------------------------------------------------------------- adversaries
async def absent(stream: Stream) -> None:
    await stream.write(BlobHead(False, 0).encode())
    await stream.finish()


async def wrong_bytes(stream: Stream) -> None:
    await stream.write(BlobHead(True, len(BLOB)).encode() + bytes(len(BLOB)))
    await stream.finish()


async def silent(stream: Stream) -> None:
    await anyio.sleep_forever()


async def stalls(stream: Stream) -> None:
    await stream.write(BlobHead(True, len(BLOB)).encode() + BLOB[:1000])
    await anyio.sleep_forever()


async def drips(stream: Stream) -> None:
    """A byte at a time: so slow that small parts are read, and so fast that no single read takes long."""
    await stream.write(BlobHead(True, len(BLOB)).encode())
    for at in range(len(BLOB)):
        await stream.write(BLOB[at : at + 1])
        await anyio.sleep(0.15)


async def steadily(stream: Stream) -> None:
    """All of it, in twenty parts that take four seconds together."""
    await stream.write(BlobHead(True, len(BLOB)).encode())
    for at in range(0, len(BLOB), len(BLOB) // 20):
        await stream.write(BLOB[at : at + len(BLOB) // 20])
        await anyio.sleep(0.2)
    await stream.finish()


async def trickles(stream: Stream) -> None:
    """Ten thousand bytes a second: slow, and more than the least that a source must send."""
    await stream.write(BlobHead(True, 10 * len(BLOB)).encode())
    while True:
        await stream.write(bytes(1000))
        await anyio.sleep(0.1)


@pytest.mark.parametrize("answer", [absent, wrong_bytes, silent, stalls, drips])
async def test_a_neighbour_that_announces_a_result_and_does_not_give_it_is_given_up(
    answer: Callable[[Stream], Awaitable[None]],
) -> None:
    """It announces the result first, and is asked first; an honest neighbour comes by it while it is being waited for."""
    settings = replace(SETTINGS, visits=0, announcement_seconds=60.0, holder_seconds=60.0, stall_seconds=1.0)
    published = anyio.Event()

    async def answers(stream: Stream) -> None:
        await published.wait()  # who says that it has nothing is not waited for, and the honest one must have it by then
        await answer(stream)

    async with with_a_false_neighbour(answers, settings) as (victim, members, stream, asked):
        blob_hash = hashlib.sha256(BLOB).digest()
        got = []

        async def fetch() -> None:
            got.append(await victim.fetch(blob_hash, sources=[], max_bytes=len(BLOB), timeout=60, tag=1, wanted_by_all=True))

        async with anyio.create_task_group() as tasks:
            await stream.write(framed(Have((blob_hash[:16],))))
            tasks.start_soon(fetch)
            await asked.wait()
            neighbour = next(member for member in members if member.peer_id in victim.stats.peers)
            await neighbour.publish(BLOB, tag=1)
            published.set()
        assert got == [BLOB]


async def test_a_result_that_makes_progress_is_not_given_up_after_the_timeout() -> None:
    """It takes twice the timeout."""
    settings = replace(HOPS_ONLY, hedge_bytes=1, stall_seconds=20.0)
    async with with_a_false_neighbour(steadily, settings) as (victim, _, stream, _):
        blob_hash = hashlib.sha256(BLOB).digest()
        await stream.write(framed(Have((blob_hash[:16],))))
        got = await victim.fetch(blob_hash, sources=[], max_bytes=len(BLOB), timeout=2, tag=1, wanted_by_all=True)
        assert got == BLOB


async def test_a_source_that_is_much_slower_than_others_were_is_given_up() -> None:
    """It sends more than any source must; it is not what the line can carry."""
    settings = replace(HOPS_ONLY, hedge_bytes=64, stall_seconds=1.0, overlay_degree=8)  # so that enough others are neighbours
    async with with_a_false_neighbour(trickles, settings) as (victim, members, stream, asked):
        near = [member for member in members if member.peer_id in victim.stats.peers]
        neighbour = near[0]
        for number in range(VOICES):
            blob = b"%d" % number + bytes(3_000_000)
            blob_hash = await near[number].publish(blob, tag=1)
            await victim.fetch(blob_hash, sources=[], max_bytes=len(blob), timeout=60, tag=1, wanted_by_all=True)
        blob_hash, got = hashlib.sha256(BLOB).digest(), []

        async def fetch() -> None:
            got.append(await victim.fetch(blob_hash, sources=[], max_bytes=10 * len(BLOB), timeout=60, tag=1, wanted_by_all=True))

        async with anyio.create_task_group() as tasks:
            await stream.write(framed(Have((blob_hash[:16],))))
            tasks.start_soon(fetch)
            await asked.wait()
            await neighbour.publish(BLOB, tag=1)
        assert got == [BLOB]


async def test_an_author_is_dialled_though_a_neighbour_says_that_it_has_its_result_and_never_answers() -> None:
    settings = replace(SETTINGS, announcement_seconds=60.0, holder_seconds=1.0)
    async with with_a_false_neighbour(silent, settings) as (victim, members, stream, _):
        author = next(member for member in members if member is not victim and member.peer_id not in victim.stats.peers)
        blob_hash = await author.publish(BLOB, tag=1)
        await stream.write(framed(Have((blob_hash[:16],))))
        assert (
            await victim.fetch(blob_hash, sources=[author.peer_id], max_bytes=len(BLOB), timeout=60, tag=1, wanted_by_all=True)
            == BLOB
        )


async def test_many_announcements_of_nothing_cost_little_and_no_connection() -> None:
    async with with_a_false_neighbour(absent, SETTINGS) as (victim, members, stream, _):
        for part in range(20):
            prefixes = (hashlib.sha256(b"%d %d" % (part, n)).digest()[:16] for n in range(control_frames.MAX_IDS))
            await stream.write(framed(Have(tuple(prefixes))))
        author = next(member for member in members if member.peer_id in victim.stats.peers)
        blob_hash = await author.publish(BLOB, tag=1)
        assert (
            await victim.fetch(blob_hash, sources=[author.peer_id], max_bytes=len(BLOB), timeout=60, tag=1, wanted_by_all=True)
            == BLOB
        )
        assert victim._blobs is not None
        holders = victim._blobs.results._holders
        assert sum(len(known) for known in holders._by_peer.values()) < 2100


# ---------------------------------------------------------------------------------------------------------- turns, pure
class Answer:
    """A stream of which only its end is of interest."""

    def __init__(self) -> None:
        self.ended = anyio.Event()

    async def delivered(self) -> None:
        await self.ended.wait()


async def test_requests_wait_for_their_turn_and_leave_when_they_are_withdrawn() -> None:
    turns = UploadTurns(seconds=3600.0)
    events = {name: (anyio.Event(), anyio.Event()) for name in (b"1", b"2", b"3", b"4")}
    streams = {name: Answer() for name in events}
    withdrawn = []

    async def request(name: bytes) -> None:
        begun, done = events[name]
        try:
            async with turns.turn(name, b"peer" + name, streams[name], size=LARGE) as granted:  # type: ignore[arg-type]
                assert granted
                begun.set()
                await done.wait()
        except LinkLost:
            withdrawn.append(name)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for name in events:
                tasks.start_soon(request, name)
                await anyio.wait_all_tasks_blocked()
            assert [name for name, (begun, _) in events.items() if begun.is_set()] == [b"1", b"2"]
            async with turns.turn(b"3", b"peer3", Answer(), size=LARGE) as granted:  # type: ignore[arg-type]
                assert not granted, "the same peer asked for it already"
            streams[b"3"].ended.set()
            await anyio.wait_all_tasks_blocked()
            assert withdrawn == [b"3"]
            events[b"1"][1].set()
            await events[b"4"][0].wait()
            for _, done in events.values():
                done.set()


async def test_a_request_for_something_tiny_begins_no_further_turns_of_what_is_large() -> None:
    turns = UploadTurns(seconds=3600.0)
    begun, done = [], anyio.Event()

    async def request(name: bytes, *, size: int) -> None:
        async with turns.turn(name, b"peer" + name, Answer(), size=size):  # type: ignore[arg-type]
            begun.append(name)
            await done.wait()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(partial(request, b"%d" % number, size=LARGE))
                await anyio.wait_all_tasks_blocked()
            tasks.start_soon(partial(request, b"tiny", size=20))
            await anyio.wait_all_tasks_blocked()
            assert begun == [b"0", b"1"]
            done.set()
        assert sorted(begun) == [b"0", b"1", b"2", b"3", b"tiny"]


async def test_a_peer_that_takes_a_result_slowly_holds_up_others_for_a_time_only() -> None:
    turns = UploadTurns(seconds=0.01)
    served = anyio.Event()

    async def slow(name: bytes) -> None:
        async with turns.turn(name, b"slow", Answer(), size=LARGE):  # type: ignore[arg-type]
            await served.wait()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow, b"1")
            tasks.start_soon(slow, b"2")
            await anyio.wait_all_tasks_blocked()
            async with turns.turn(b"3", b"honest", Answer(), size=LARGE) as granted:  # type: ignore[arg-type]
                assert granted
            served.set()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_the_same_request_may_come_again_after_its_turn_and_both_may_end_in_any_order(order: tuple[int, int]) -> None:
    turns = UploadTurns(seconds=0.01)
    begun, done = [anyio.Event(), anyio.Event()], [anyio.Event(), anyio.Event()]

    async def request(number: int) -> None:
        async with turns.turn(b"1", b"peer", Answer(), size=LARGE) as granted:  # type: ignore[arg-type]
            assert granted
            begun[number].set()
            await done[number].wait()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for number in (0, 1):
                tasks.start_soon(request, number)
                await begun[number].wait()
                await until(lambda: not turns._queue._sending)
            for number in order:
                done[number].set()
                await anyio.wait_all_tasks_blocked()
    assert not turns._begun
    assert not turns._queue._sending
