"""What neighbours that send slowly, stop in the middle, or lie cost a member that receives results. In virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from plugins.p2p_quic.tests.virtual_line import VirtualStream, World, run
from psyche_p2p_quic.blobs.frames import BlobHead
from psyche_p2p_quic.settings import QuicSettings

LINE = 12_500_000.0
SIZE = 3_000_000
PATIENT = QuicSettings(holder_seconds=3600.0, announcement_seconds=3600.0)
"""No author is dialled."""

Attack = Callable[[World, VirtualStream, bytes, bytes], Awaitable[None]]


def honest_ones(count: int) -> list[bytes]:
    return [b"honest %d" % number for number in range(count)]


def false_ones(count: int) -> list[bytes]:
    return [b"false %d" % number for number in range(count)]


async def attacked(
    attack: Attack, *, honest: int, false: int, later: float = 0.3, limit: float = 60.0, settings: QuicSettings = PATIENT
) -> World:
    """Fetch 24 results that the false neighbours announce at once, and the honest ones after `later` seconds."""
    world = World(line=LINE, size=SIZE, results=24, settings=settings)
    for peer in honest_ones(honest):
        world.honest(peer, rate=LINE)

    async def serve(stream: VirtualStream, blob_hash: bytes, peer: bytes) -> None:
        await attack(world, stream, blob_hash, peer)

    for peer in false_ones(false):
        world.connect(peer, serve)
    world.announce(false_ones(false))

    async def publish() -> None:
        await anyio.sleep(later)
        world.announce(honest_ones(honest))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(publish)
        await world.fetch_all(limit=limit)
        tasks.cancel_scope.cancel()
    assert not world.results._downloads._late & {*honest_ones(honest)}
    return world


async def begin(world: World, stream: VirtualStream, blob_hash: bytes) -> bytes:
    """Send the head of an answer; return the body."""
    blob = world.blobs[blob_hash]
    await stream.send(BlobHead(True, len(blob)).encode())
    return blob


async def trickles(world: World, stream: VirtualStream, blob_hash: bytes, _peer: bytes) -> None:
    """Nearly twice the least that a source must send, whatever that is now."""
    blob, at = await begin(world, stream, blob_hash), 0
    while at < len(blob):
        await anyio.sleep(0.2)
        part = int(1.8 * world.results._pace.least * 0.2) + 1
        await stream.send(blob[at : at + part])
        at += part


@pytest.mark.parametrize(("honest", "false", "within"), [(4, 4, 16.0), (9, 9, 30.0)])
def test_some_that_trickle_together_hold_up_the_others_results_for_a_few_looks_only(
    honest: int, false: int, within: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing came before their bodies ended, because as many lagged as there were places. On the line all take 5.8 s."""
    world = run(attacked(trickles, honest=honest, false=false), monkeypatch)
    assert len(world.got) == 24
    assert max(world.got.values()) < within
    assert world.received < 1.15 * 24 * SIZE


@pytest.mark.parametrize(("line", "size", "results"), [(200_000.0, 3_000_000, 24), (1_000_000.0, 22_000_000, 6)])
def test_on_a_slow_line_of_our_own_nothing_is_received_in_vain(
    line: float, size: int, results: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow_line() -> World:
        world = World(line=line, size=size, results=results, settings=PATIENT)
        for peer in honest_ones(8):
            world.honest(peer, rate=LINE)
        world.announce(honest_ones(8))
        await world.fetch_all(limit=600.0)
        return world

    world = run(slow_line(), monkeypatch)
    assert len(world.got) == results
    assert world.received < 1.02 * results * size


async def races_while_compared(world: World, stream: VirtualStream, blob_hash: bytes, _peer: bytes) -> None:
    blob, at = await begin(world, stream, blob_hash), 0
    while at < len(blob):
        await anyio.sleep(0.2)
        wanted = world.results._wanted.get(blob_hash[:16])
        compared = wanted is not None and len(wanted.sending) > 1
        part = 200_000 if compared else int(1.3 * world.results._pace.least * 0.2) + 1
        await stream.send(blob[at : at + part])
        at += part


def test_who_is_fast_only_while_it_is_compared_is_forgiven_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = run(attacked(races_while_compared, honest=6, false=2), monkeypatch)
    assert len(world.got) == 24
    assert max(world.got.values()) < 20.0
    assert world.results._downloads._late == {*false_ones(2)}


async def nearly_all(world: World, stream: VirtualStream, blob_hash: bytes) -> None:
    await stream.send((await begin(world, stream, blob_hash))[: SIZE * 95 // 100])
    while stream.waiting and not stream.broken:
        await anyio.sleep(0.02)
    await anyio.sleep(0.1)  # the member reads it


async def stops_before_the_end(world: World, stream: VirtualStream, blob_hash: bytes, _peer: bytes) -> None:
    await nearly_all(world, stream, blob_hash)


async def closes_before_the_end(world: World, stream: VirtualStream, blob_hash: bytes, peer: bytes) -> None:
    """It connects again at once, and announces everything again."""
    await nearly_all(world, stream, blob_hash)
    if not stream.broken:
        session = world.mesh.sessions[peer]
        world.disconnect(peer)
        world.mesh.sessions[peer] = session
        world.announce([peer])


@pytest.mark.parametrize("attack", [stops_before_the_end, closes_before_the_end])
def test_bodies_that_end_before_their_end_cost_each_neighbour_its_rank_at_the_first(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = run(attacked(attack, honest=4, false=8, later=3.0), monkeypatch)
    assert len(world.got) == 24
    assert world.results._downloads._late == {*false_ones(8)}


async def absent(world: World, stream: VirtualStream, blob_hash: bytes, peer: bytes) -> None:
    await stream.send(BlobHead(False, 0).encode())


async def absent_again(world: World, stream: VirtualStream, blob_hash: bytes, peer: bytes) -> None:
    """It announces at once what it has just said not to have."""
    await stream.send(BlobHead(False, 0).encode())
    await anyio.sleep(0.05)
    world.results.heard(peer, (blob_hash[:16],))


@pytest.mark.parametrize("attack", [absent, absent_again])
def test_who_announces_results_and_says_then_that_it_has_them_not_ends_nobodys_waiting(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The honest ones have them a little later. `Results.fetch` gave up at once, and authors were asked."""
    world = run(attacked(attack, honest=4, false=4, later=3.0, limit=25.0, settings=QuicSettings()), monkeypatch)
    assert len(world.got) == 24
    assert not world.failed
    assert all(world.asked[peer] <= 2 * 24 for peer in false_ones(4))


def test_what_all_neighbours_said_not_to_have_is_fetched_from_its_author_after_the_wait_for_announcements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nobody_has_it() -> tuple[World, float]:
        world = World(line=LINE, size=SIZE, results=24, settings=QuicSettings())

        async def serve(stream: VirtualStream, blob_hash: bytes, peer: bytes) -> None:
            await absent(world, stream, blob_hash, peer)

        world.connect(b"false", serve)
        world.announce([b"false"])
        began = world.now()
        await world.fetch_all(limit=60.0)
        return world, world.now() - began

    world, seconds = run(nobody_has_it(), monkeypatch)
    assert len(world.failed) == 24
    assert 10.0 <= seconds < 12.0
