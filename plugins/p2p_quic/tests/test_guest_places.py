"""Neighbours, guests and visits of a member are never more than its places, whatever happens in whatever order. Pure."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from psyche_core.p2p.overlay import DEGREE
from psyche_p2p_quic.connections.guests import Guests
from psyche_p2p_quic.settings import QuicSettings

MOST = 5
VISITS = 2
MEMBERS = [bytes((number,)) * 32 for number in range(14)]
GOAL = 32


class Places(RuleBasedStateMachine):
    """A mesh without sockets: it asks `Guests` as the real one does, and counts whom it is connected with or connects to."""

    def __init__(self) -> None:
        super().__init__()
        self.guests = Guests(most=MOST, most_visits=VISITS, turn_seconds=3.0, idle_seconds=2.0)
        self.guests.neighbours = frozenset(MEMBERS[:6])
        self.connected: set[bytes] = set()
        self.greeted: set[bytes] = set()
        self.visits: Counter[bytes] = Counter()
        self.now = 0.0

    def look(self) -> None:
        self.now += 1.0
        self.guests.present(self.connected, self.now)
        self.connected -= set(self.guests.surplus([peer for peer in self.connected if peer[0] % 2]))

    @rule(peer=st.sampled_from(MEMBERS))
    def arrives(self, peer: bytes) -> None:
        admitted, leaves = self.guests.admit(peer, self.now)
        assert admitted or leaves is None
        if admitted:
            self.greeted.add(peer)
            self.connected -= {leaves}
            self.look()

    @precondition(lambda self: self.greeted)
    @rule(data=st.data(), succeeds=st.booleans())
    def has_come(self, data: st.DataObject, succeeds: bool) -> None:
        peer = data.draw(st.sampled_from(sorted(self.greeted)))
        self.greeted.discard(peer)
        if succeeds:
            self.connected.add(peer)
            self.look()
        self.guests.has_come(peer)

    @rule(peer=st.sampled_from(MEMBERS))
    def visit(self, peer: bytes) -> None:
        assert self.guests.neighbours is not None
        if peer in self.guests.neighbours:
            return

        begun, leaves = self.guests.begin_visit(peer)
        assert begun or peer in self.visits or len(self.visits) == VISITS, "guests cannot keep visits out"
        if begun:
            self.visits[peer] += 1
            self.connected -= {leaves}

    @precondition(lambda self: self.visits)
    @rule(data=st.data(), connects=st.booleans())
    def ends_a_visit(self, data: st.DataObject, connects: bool) -> None:
        peer = data.draw(st.sampled_from(sorted(self.visits)))
        if connects:
            self.connected.add(peer)
            self.look()
        self.guests.end_visit(peer)
        self.visits -= Counter([peer])

    @rule()
    def is_connected_with_its_neighbours(self) -> None:
        assert self.guests.neighbours is not None
        self.connected |= self.guests.neighbours
        self.look()

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def disconnects(self, data: st.DataObject) -> None:
        self.connected.discard(data.draw(st.sampled_from(sorted(self.connected))))
        self.look()

    @rule()
    def hangs_up(self) -> None:
        self.connected -= set(self.guests.idle({}, self.now))
        self.look()

    @rule(near=st.sets(st.sampled_from(MEMBERS), max_size=6))
    def has_other_neighbours(self, near: set[bytes]) -> None:
        for peer in self.greeted - near:  # those of before, so that nothing but guests can be too much
            self.guests.has_come(peer)
        self.greeted &= near
        self.guests.neighbours = frozenset(near)
        for peer in list(self.visits):
            while peer in near and self.visits[peer]:
                self.guests.end_visit(peer)
                self.visits -= Counter([peer])
        self.look()

    @invariant()
    def has_enough_places(self) -> None:
        assert self.guests.neighbours is not None
        beside = (self.connected | self.greeted | self.visits.keys()) - self.guests.neighbours
        assert len(beside) <= MOST


TestPlaces = Places.TestCase


def test_the_real_limits_keep_the_goal() -> None:
    settings = QuicSettings()
    assert settings.overlay_degree == DEGREE
    assert settings.overlay_degree + settings.guests + settings.arrivals <= GOAL
    assert 0 < settings.visits < settings.guests


def test_a_guest_that_connects_again_keeps_its_place_until_it_has() -> None:
    guests = Guests(most=2, most_visits=1, turn_seconds=3.0, idle_seconds=2.0)
    guests.neighbours = frozenset()
    guests.present(MEMBERS[:2], 0.0)
    assert guests.admit(MEMBERS[0], 9.0) == (True, None)
    assert guests.begin_visit(MEMBERS[3]) == (True, MEMBERS[1]), "not the one that has been here longest"
