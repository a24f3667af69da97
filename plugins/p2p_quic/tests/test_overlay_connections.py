"""Members that are connected with their neighbours only: degree, messages, guests, and members that leave. Real endpoints."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import anyio
import pytest

from plugins.p2p_quic.tests.overlay_members import DEGREE, NO_BEATS, SETTINGS, graph, joined, members_of, mesh_of, name_each_other
from plugins.p2p_quic.tests.rogue import Rogue, framed
from psyche_core.client.runtime.reports.network_reporter import NetworkReporter
from psyche_core.observer.client_status import ClientStatus
from psyche_core.telemetry.events import Event, PeerPaths
from psyche_core.testing.transport import received, until
from psyche_core.types import NodeIdentity
from psyche_core.ui.client_status_text import status_lines
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.addresses.peer_address import PeerAddress
from psyche_p2p_quic.connections import session
from psyche_p2p_quic.connections.arrivals import Arrivals
from psyche_p2p_quic.connections.control_frames import Hello
from psyche_p2p_quic.connections.guests import Guests
from psyche_p2p_quic.endpoint.endpoint import Endpoint
from psyche_p2p_quic.endpoint.links import LinkLost
from psyche_p2p_quic.settings import QuicSettings
from psyche_p2p_quic.transport import QuicTransport

pytestmark = pytest.mark.quic


async def test_every_message_reaches_everybody_though_nobody_has_more_neighbours_than_allowed() -> None:
    async with members_of(10, settings=NO_BEATS) as members:
        for member in members:
            for number in range(3):
                await member.broadcast(member.peer_id + b"%d" % number, tag=1)
        sent = {member.peer_id + b"%d" % number for member in members for number in range(3)}
        for member in members:
            came = Counter(incoming.message for incoming in await received(member, 27))
            assert set(came) == {message for message in sent if message[:32] != member.peer_id}
            assert set(came.values()) == {1}
        assert max(len(member.stats.peers) for member in members) <= DEGREE
        assert any(set(member.stats.peers) < {other.peer_id for other in members} - {member.peer_id} for member in members)


async def test_members_that_are_no_neighbours_are_told_as_reached_over_others() -> None:
    """`psyche client status` called them "not reached now", and half of all members of a run with 40."""
    async with members_of(10) as members:
        one = members[0]
        await until(lambda: len(one.paths) == len(one.stats.peers), what="a path of a neighbour stayed unknown")
        told: list[Event] = []
        reporter = NetworkReporter(one, told.append, own=NodeIdentity(one.peer_id, one.peer_id))
        reporter.start(0.0)
        reporter.tick(1.0, [NodeIdentity(member.peer_id, member.peer_id) for member in members])
        (paths,) = [event for event in told if isinstance(event, PeerPaths)]
        near = graph(members).neighbours(one.peer_id)
        assert {peer.peer for peer in paths.peers} == {key[:4].hex() for key in near}
        assert {(peer.path, peer.neighbour) for peer in paths.peers} == {("direct", True)}
        assert paths.over_others == 9 - len(near) > 0
        status = ClientStatus()
        status.handle(1000.0, paths)
        (line,) = [line for line in status_lines(status.document(), now=1000.0) if line.startswith("members:")]
        assert line.split(maxsplit=1)[1] == f"{len(near)} reached directly, {paths.over_others} over others (0 s ago)"


async def test_messages_go_on_at_once_without_ids_and_comparisons() -> None:
    """With both switched off, a message that is not passed on at once never arrives beyond its author's neighbours."""
    async with members_of(10, settings=replace(NO_BEATS, gossip_seconds=3600.0)) as members:
        author = members[0]
        await author.broadcast(author.peer_id + b"at once", tag=1)
        overlay = graph(members)
        assert any((overlay.hops(author.peer_id, member.peer_id) or 0) > 1 for member in members)
        for member in members[1:]:
            assert [incoming.message for incoming in await received(member, 1)] == [author.peer_id + b"at once"]


async def test_without_a_seed_all_are_connected() -> None:
    async with members_of(7) as members:
        await name_each_other(members, seed=None)
        await until(lambda: all(len(member.stats.peers) == 6 for member in members))
        assert all(member.stats.neighbours is None for member in members)


async def test_who_stays_is_connected_after_others_have_left() -> None:
    async with members_of(10, settings=NO_BEATS) as members:
        gone, stay = members[:3], members[3:]
        for member in gone:
            await member.aclose()
        await name_each_other(stay)
        await joined(stay, graph(stay))
        await stay[0].broadcast(stay[0].peer_id + b"still", tag=1)
        for member in stay[1:]:
            assert [incoming.message for incoming in await received(member, 1)] == [stay[0].peer_id + b"still"]


async def test_another_seed_gives_other_neighbours_and_the_old_ones_are_let_go() -> None:
    async with members_of(10) as members:
        before = {member.peer_id: set(member.stats.peers) for member in members}
        await name_each_other(members, seed=8)
        await joined(members, graph(members, seed=8))
        assert any(before[member.peer_id] != set(member.stats.peers) for member in members)


async def test_members_that_are_no_neighbours_are_let_in_up_to_a_number() -> None:
    """Real endpoints with members' keys, which dial though the graph does not say so."""
    keys = [SecretKey.generate() for _ in range(20)]
    settings = replace(SETTINGS, guest_idle_seconds=3600.0, silent_beats=10_000)
    async with members_of(6, settings=settings, others=[key.public for key in keys]) as members:
        victim = members[0]
        near = set(graph(members, others=[key.public for key in keys]).neighbours(victim.peer_id))
        far = [key for key in keys if key.public not in near]
        neighbour = next((key for key in keys if key.public in near), None)
        endpoints, refusals, streams = [], [], []
        try:
            for key in [*far[:6], *([] if neighbour is None else [neighbour])]:
                endpoints.append(await Endpoint.bind(key.seed, interface="127.0.0.1", port=0))
                link = await endpoints[-1].dial(victim.peer_id, PeerAddress.decode(victim.address).dialable())
                try:
                    stream = await link.open()
                    await stream.write(framed(Hello("run", b"instance")))
                    assert await stream.read(1000)
                    streams.append((link, stream))
                except (LinkLost, AssertionError):
                    refusals.append((key.public, link.close_reason))
        finally:
            here = set(victim.stats.peers)
            for endpoint in endpoints:
                await endpoint.aclose(timeout=1)
        assert [key for key, _ in refusals] == [key.public for key in far[2:6]], "a neighbour is let in always"
        assert all("no neighbours" in reason for _, reason in refusals)
        assert {key.public for key in far[:2]} <= here
        assert len(here) <= DEGREE + settings.guests


async def test_members_that_connect_and_say_nothing_keep_no_guest_out_and_cost_no_guest_its_place() -> None:
    """Real endpoints with members' keys: as many as may be silent at once, then one more, and then an honest member."""
    keys = [SecretKey.generate() for _ in range(20)]
    others = [key.public for key in keys]
    settings = replace(SETTINGS, guests=1, visits=1, arrivals=2, hello_seconds=60.0, guest_turn_seconds=0.0, silent_beats=10_000)
    async with members_of(6, settings=replace(settings, guest_idle_seconds=3600.0), others=others) as members:
        victim = members[0]
        overlay = graph(members, others=others)
        far = [key for key in keys if key.public not in overlay.neighbours(victim.peer_id)][:4]
        async with AsyncExitStack() as stack:
            rogues = [Rogue(await Endpoint.bind(key.seed, interface="127.0.0.1", port=0), key) for key in far]
            for rogue in rogues:
                stack.push_async_callback(partial(rogue.endpoint.aclose, timeout=1))
            guest, *silent = rogues
            link, _ = await guest.greeted(victim)
            stack.callback(link.close, 0, "the test is over")
            await until(lambda: guest.peer_id in victim.stats.peers)
            links = [await rogue.link(victim) for rogue in silent]
            await until(lambda: any("did not say hello" in link.close_reason for link in links))
            assert guest.peer_id in victim.stats.peers, "nobody has said hello, so it need not leave for anybody"
            blob_hash = await victim.publish(b"a part of a share", tag=1)
            visitor = next(member for member in members if member.peer_id not in (victim.peer_id, *victim.stats.peers))
            got = await visitor.fetch(blob_hash, sources=[victim.peer_id], max_bytes=100, timeout=60, tag=1, keep=False)
            assert got == b"a part of a share"


async def test_guests_and_visits_together_have_no_more_places_than_there_are() -> None:
    """Real endpoints: others fill the places of one member, which then visits several at the same time, and all visit it back."""
    settings = replace(SETTINGS, guests=4, visits=2, guest_idle_seconds=3600.0)
    async with members_of(12, settings=settings) as members:
        overlay = graph(members)
        hub = members[0]
        near = set(overlay.neighbours(hub.peer_id))
        far = [member for member in members[1:] if member.peer_id not in near]
        most = 0

        async def watch() -> None:
            nonlocal most
            mesh = mesh_of(hub)
            while True:  # there is no event for a dial that begins
                open_now = {peer for peer, made in mesh.sessions.items() if not made.closing}
                most = max(most, len(open_now | {peer for peer in mesh.members if mesh.guests.visits(peer)}))
                await anyio.sleep(0)

        async def fetch(asker: QuicTransport, source: QuicTransport, blob: bytes) -> None:
            blob_hash = hashlib.sha256(blob).digest()
            assert await asker.fetch(blob_hash, sources=[source.peer_id], max_bytes=100, timeout=60, tag=1) == blob

        for member in members:
            await member.publish(b"of " + member.peer_id, tag=1)
        for number in range(len(far)):
            await hub.publish(b"%d of the hub" % number, tag=1)
        async with anyio.create_task_group() as watching:
            watching.start_soon(watch)
            for number, member in enumerate(far[: settings.guests]):
                await fetch(member, hub, b"%d of the hub" % number)
            assert len(mesh_of(hub).sessions) == len(near) + settings.guests
            async with anyio.create_task_group() as tasks:
                for member in far:
                    tasks.start_soon(fetch, hub, member, b"of " + member.peer_id)
            watching.cancel_scope.cancel()
        assert most == len(near) + settings.guests


async def test_neighbours_of_before_that_are_too_many_are_let_go_at_once() -> None:
    settings = replace(SETTINGS, guests=1, visits=1, guest_idle_seconds=3600.0)
    async with members_of(10, settings=settings) as members:
        await name_each_other(members, seed=None)
        await until(lambda: all(len(member.stats.peers) == 9 for member in members))
        await name_each_other(members)
        await until(lambda: all(len(member.stats.peers) <= DEGREE + settings.guests for member in members))


async def test_a_part_that_only_its_owner_has_is_fetched_from_it_at_once_and_a_result_is_waited_for() -> None:
    """No announcement comes: nobody else wants either. A result is waited for longer than the test may last."""
    settings = replace(SETTINGS, announcement_seconds=3600.0, holder_seconds=3600.0)
    async with members_of(10, settings=settings) as members:
        asker = members[0]
        owner = next(other for other in members[1:] if other.peer_id not in graph(members).neighbours(asker.peer_id))
        part = await owner.publish(b"a part of a share", tag=1)
        result = await owner.publish(b"a result", tag=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                partial(asker.fetch, result, sources=[owner.peer_id], max_bytes=100, timeout=80, tag=1, wanted_by_all=True)
            )
            assert await asker.fetch(part, sources=[owner.peer_id], max_bytes=100, timeout=60, tag=1) == b"a part of a share"
            tasks.cancel_scope.cancel()


async def test_a_blob_of_a_named_member_that_is_no_neighbour_comes_and_the_connection_ends() -> None:
    async with members_of(10) as members:
        overlay = graph(members)
        asker = members[0]
        source = next(other for other in members[1:] if other.peer_id not in overlay.neighbours(asker.peer_id))
        blob_hash = await source.publish(b"a part of a share", tag=1)
        seen: set[bytes] = set()

        async def watch() -> None:
            while True:
                await mesh_of(asker).changed.wait()
                seen.update(asker.stats.peers)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            await anyio.lowlevel.checkpoint()
            blob = await asker.fetch(blob_hash, sources=[source.peer_id], max_bytes=100, timeout=60, tag=1, keep=False)
            assert blob == b"a part of a share"
            tasks.cancel_scope.cancel()
        assert source.peer_id in seen, "nobody else had it"
        await joined(members, overlay)


async def test_the_next_source_is_visited_if_the_first_has_not_got_it() -> None:
    settings = replace(SETTINGS, guest_idle_seconds=3600.0, visit_seconds=0.5)
    async with members_of(10, settings=settings) as members:
        overlay = graph(members)
        asker = members[0]
        far = [other for other in members[1:] if other.peer_id not in overlay.neighbours(asker.peer_id)]
        blob_hash = await far[1].publish(b"piece", tag=1)
        sources = [far[0].peer_id, far[1].peer_id]
        assert await asker.fetch(blob_hash, sources=sources, max_bytes=100, timeout=60, tag=1, keep=False) == b"piece"


# ------------------------------------------------------------------------------------------------------- guests, pure
NEAR, ONE, TWO, THREE = (bytes((number,)) * 32 for number in range(4))


class Middle(random.Random):
    """Draws what lies in the middle."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def guests_of(most: int = 2) -> Guests:
    """Guests of a member with one neighbour."""
    guests = Guests(most=most, most_visits=1, turn_seconds=10.0, idle_seconds=5.0, draw=Middle())
    guests.neighbours = frozenset({NEAR})
    return guests


def test_the_guest_that_has_been_here_longest_makes_room_after_its_turn() -> None:
    guests = guests_of()
    guests.present([ONE], 0.0)
    guests.present([NEAR, ONE, TWO], 4.0)
    assert guests.admit(NEAR, 5.0) == (True, None)
    assert guests.admit(ONE, 5.0) == (True, None), "it is here already"
    guests.has_come(ONE)
    assert guests.admit(THREE, 9.0) == (False, None)
    assert guests.admit(THREE, 10.0) == (True, ONE)


def test_who_was_admitted_has_its_place_until_it_has_come() -> None:
    guests = guests_of()
    assert guests.admit(NEAR, 0.0) == (True, None)
    assert guests.admit(ONE, 0.0) == (True, None)
    assert guests.admit(ONE, 0.0) == (True, None)
    assert guests.admit(TWO, 0.0) == (False, None), "the other place is that of a visit"
    guests.present([ONE], 0.0)
    guests.has_come(ONE)
    assert guests.admit(TWO, 0.0) == (True, None)
    assert guests.admit(THREE, 0.0) == (False, None)
    guests.has_come(TWO)  # it was closed meanwhile
    assert guests.admit(THREE, 0.0) == (True, None)


def test_who_never_gets_further_than_a_hello_keeps_nobody_from_visits() -> None:
    guests = guests_of()
    assert guests.admit(ONE, 0.0) == (True, None)
    assert guests.begin_visit(THREE) == (True, None)
    assert guests.admit(TWO, 0.0) == (False, None)


class Connection:
    """A connection of which only its end is of interest."""

    def __init__(self, peer: bytes) -> None:
        self.peer = peer
        self.closed: list[int] = []

    def close(self, code: int, reason: str) -> None:
        self.closed.append(code)


def test_the_connection_that_has_been_silent_longest_makes_room_and_none_after_its_hello() -> None:
    arrivals = Arrivals(most=2, per_peer=4)
    near, one, two, three, again = (Connection(peer) for peer in (NEAR, ONE, TWO, THREE, ONE))
    with arrivals.coming(near, beside=False), arrivals.coming(one, beside=True), arrivals.coming(two, beside=True):
        assert arrivals.are_enough(ONE, beside=True)
        assert not arrivals.are_enough(NEAR, beside=False)
        arrivals.greeted(one)
        with arrivals.coming(three, beside=True):
            assert not two.closed
            with arrivals.coming(again, beside=True):
                assert two.closed == [session.NO_NEIGHBOUR]
        assert not [other for other in (near, one, three, again) if other.closed]
        assert TWO in arrivals
    assert not [peer for peer in (NEAR, ONE, TWO, THREE) if peer in arrivals]


def test_who_is_visited_is_not_hung_up() -> None:
    guests = guests_of()
    assert guests.begin_visit(ONE) == (True, None)
    assert guests.begin_visit(TWO) == (False, None), "one visit at once"
    assert guests.begin_visit(ONE) == (True, None)
    guests.present([ONE], 0.0)
    assert guests.admit(TWO, 1.0) == (True, None)
    assert guests.idle({}, 100.0) == []
    guests.end_visit(ONE)
    assert guests.seeks(ONE)
    guests.end_visit(ONE)
    assert not guests.seeks(ONE)
    assert guests.idle({}, 104.0) == []
    assert guests.idle({}, 105.0) == [ONE]


def test_the_guest_that_has_been_here_longest_leaves_at_once_for_a_visit() -> None:
    guests = guests_of()
    guests.present([ONE], 0.0)
    guests.present([ONE, TWO], 1.0)
    assert guests.begin_visit(THREE) == (True, ONE)
    assert guests.admit(ONE, 2.0) == (False, None), "its place is that of the visit"
    guests.end_visit(THREE)
    assert guests.admit(ONE, 2.0) == (True, None)


def test_neighbours_of_before_leave_if_they_are_too_many_and_first_those_without_transfers() -> None:
    guests = guests_of()
    guests.neighbours = frozenset({ONE, TWO, THREE})
    guests.present([ONE, TWO, THREE], 0.0)
    assert guests.surplus(()) == []
    guests.neighbours = frozenset({NEAR})
    guests.present([ONE, TWO, THREE], 1.0)
    assert guests.surplus([ONE, THREE]) == [TWO]
    assert guests.surplus([ONE, THREE]) == []


def test_more_visits_than_places_are_refused() -> None:
    with pytest.raises(ValueError, match="no more than 2 at once, got 3"):
        Guests(most=2, most_visits=3, turn_seconds=10.0, idle_seconds=5.0)
    with pytest.raises(ValueError, match="no more than 2 at once, got 6"):
        QuicSettings(guests=2)


def test_a_transfer_between_two_looks_keeps_a_guest() -> None:
    guests = guests_of()
    guests.present([ONE, TWO], 0.0)
    assert guests.idle({ONE: (False, 1), TWO: (True, 0)}, 4.0) == []
    assert guests.idle({ONE: (False, 1), TWO: (True, 0)}, 8.0) == []
    assert guests.idle({ONE: (False, 1), TWO: (False, 0)}, 9.0) == [ONE]


def test_without_a_graph_nobody_is_a_guest() -> None:
    guests = guests_of()
    guests.neighbours = None
    guests.present([ONE, TWO, THREE], 0.0)
    assert guests.admit(b"4" * 32, 0.0) == (True, None)
    assert guests.idle({}, 1000.0) == []


async def test_a_crowd_that_was_connected_before_the_seed_was_known_becomes_neighbours_and_nobody_else() -> None:
    async with members_of(7) as members:
        await name_each_other(members, seed=None)
        await until(lambda: all(len(member.stats.peers) == 6 for member in members))
        await name_each_other(members)
        await joined(members, graph(members))


async def test_keys_that_are_none_are_left_out_of_the_graph() -> None:
    async with QuicTransport("run", SecretKey.generate(), settings=SETTINGS) as one:
        await one.set_peers({b"short": b"", **{bytes((number,)) * 32: b"" for number in range(9)}}, seed=1)
        assert one.stats.neighbours is not None
        assert b"short" not in one.stats.neighbours
