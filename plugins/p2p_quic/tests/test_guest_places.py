"""Who gets a place beside a member's neighbours: never more than there are, and who takes turns keeps nobody out. Pure."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from psyche_core.p2p.overlay import DEGREE
from psyche_p2p_quic.connections.entries import Entries
from psyche_p2p_quic.connections.guest_order import MOST_REMEMBERED, STEP_SECONDS, WANTS_SECONDS, GuestOrder
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
        self.guests = Guests(most=MOST, most_visits=VISITS, turn_seconds=3.0, idle_seconds=2.0, draw=random.Random(0))
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

    @rule(seconds=st.floats(0.0, 60.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def has_enough_places(self) -> None:
        assert self.guests.neighbours is not None
        beside = (self.connected | self.greeted | self.visits.keys()) - self.guests.neighbours
        assert len(beside) <= MOST

    @invariant()
    def remembers_no_more_than_it_knows(self) -> None:
        order = self.guests._order
        assert self.guests._since.keys() == self.guests._until.keys() == self.guests._active.keys()
        assert not order._wants.keys() & self.guests._admitted
        assert all(0.0 <= wish.since <= wish.asked <= self.now for wish in order._wants.values())


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


class Rotation:
    """A member whose places are wanted by colluders, each at any moment, and by honest members, each now and then.

    An honest one stays for six seconds. waits: seconds that each of them had to wait.
    """

    TURN = 30.0

    def __init__(self, colluders: int, honest: int) -> None:
        self.guests = Guests(most=9, most_visits=6, turn_seconds=self.TURN, idle_seconds=5.0, draw=random.Random(1))
        self.guests.neighbours = frozenset()
        self.draw = random.Random(2)
        self.colluders = [b"colluder %d" % number for number in range(colluders)]
        self.honest = [b"honest %d" % number for number in range(honest)]
        self.here: set[bytes] = set()
        self.now = 0.0
        self.waits: list[float] = []
        self.leaves: dict[bytes, float] = {}

    def ask(self, peer: bytes) -> bool:
        admitted, leaves = self.guests.admit(peer, self.now)
        if admitted:
            self.here = {*self.here, peer} - {leaves}
            self.guests.present(self.here, self.now)
            self.guests.has_come(peer)
        return admitted

    def run(self, *, since: float, until: float) -> None:
        """since: when the honest ones begin to ask."""
        asks = {peer: since + self.draw.uniform(0.0, 2.5) for peer in self.honest}
        while self.now < until:
            self.now += 0.1
            over = {peer for peer, at in self.leaves.items() if at <= self.now}
            self.here -= over
            self.leaves = {peer: at for peer, at in self.leaves.items() if peer not in over}
            self.guests.present(self.here, self.now)
            for peer in self.draw.sample(self.colluders, len(self.colluders)):
                if peer not in self.here:
                    self.ask(peer)
            for peer, at in list(asks.items()):
                if at > self.now:
                    continue

                if self.ask(peer):
                    self.waits.append(self.now - since)
                    self.leaves[peer] = self.now + 6.0
                    del asks[peer]
                else:
                    asks[peer] = self.now + self.draw.uniform(2.0, 3.0)


def test_members_that_take_turns_in_all_places_keep_no_newcomers_out() -> None:
    """There are twice as many as places, and one of them is always there first."""
    rotation = Rotation(18, 4)
    rotation.run(since=100.0, until=100.0 + Rotation.TURN)
    assert len(rotation.waits) == 4
    assert len(rotation.here) == 9


def test_newcomers_wait_for_a_turn_where_all_places_were_taken_at_the_same_moment() -> None:
    rotation = Rotation(9, 9)
    rotation.run(since=1.0, until=1.0 + 1.6 * Rotation.TURN)
    assert len(rotation.waits) == 9
    assert min(rotation.waits) > 0.4 * Rotation.TURN, "a guest has some time"
    assert len({round(wait) for wait in rotation.waits}) > 4, "nobody knows when a place becomes free"


def test_who_has_been_here_least_comes_first_and_then_who_has_waited_much_longer() -> None:
    order = GuestOrder()
    one, two, three, four = MEMBERS[:4]
    for twentieth in range(600):
        order.note([one], twentieth / 20)  # many looks count as much as one
    order.note([one, two], 30.0)
    order.note([two], 30.0 + STEP_SECONDS / 2)
    for peer in (one, two, three):
        order.refused(peer)
    order.note([], 31.0 + 1.6 * STEP_SECONDS)
    for peer in (one, two, three, four):
        order.refused(peer)
    assert set(order.before(one)) == {two, three, four}
    assert order.before(two) == order.before(three) == []
    assert set(order.before(four)) == {two, three}
    order.admitted(two)
    assert order.before(four) == [three]


def test_who_wants_a_place_and_does_not_come_for_it_has_had_it() -> None:
    order = GuestOrder()
    one, two, three = MEMBERS[:3]
    order.note([], 1.0)
    order.refused(one)
    order.refused(two)
    order.refused(three, for_others=[one])
    order.note([], 1.1 + WANTS_SECONDS)
    assert set(order._stayed) == {one}, "the others were in nobody's way"
    for peer in (one, two, three):
        order.refused(peer)
    assert set(order.before(one)) == {two, three}


def test_who_asks_again_goes_on_wanting_and_a_little_earlier_does_not_matter() -> None:
    order = GuestOrder()
    one, two, three = MEMBERS[:3]
    for now in (1.0, 1.0 + 0.9 * WANTS_SECONDS, 1.0 + 1.8 * WANTS_SECONDS):
        order.note([], now)
        order.refused(one)
    assert order.before(two) == [one]
    order.refused(two)
    order.note([], order._now + 0.9 * STEP_SECONDS)
    assert order.before(three) == [one]
    order.note([one, two], order._now + 0.1)
    assert order.before(three) == [], "they are here"


def test_what_was_long_ago_does_not_matter() -> None:
    order = GuestOrder()
    one, two = MEMBERS[:2]
    order.note([], 1.0)
    order.note([one], 60.0)
    order.refused(two)
    assert order.before(one) == [two]
    order.note([], 2000.0)
    order.refused(two)
    assert order.before(one) == []
    assert not order._stayed


def test_only_who_makes_another_leave_a_place_to_it_may_be_in_the_way() -> None:
    guests = Guests(most=2, most_visits=1, turn_seconds=10.0, idle_seconds=5.0, draw=random.Random(3))
    guests.neighbours = frozenset()
    one, two, three, four = MEMBERS[:4]
    assert guests.admit(one, 1.0) == (True, None)
    assert guests.admit(two, 1.0) == (False, None), "the other place is kept until the first has come"
    guests.present([one, four], 1.0)
    guests.has_come(one)
    guests.present([four], 2.9)  # one has had a second
    guests.present([three, four], 3.0)
    assert guests.admit(one, 3.0) == (False, None)
    assert guests._order._wants.keys() == {one, two}
    assert not guests._order._wants[two].in_the_way, "there is no place for anybody"
    guests._order._stayed[one] = 2 * STEP_SECONDS
    guests.present([four], 3.0)
    assert guests.admit(one, 3.0) == (False, None)
    assert guests._order._wants[two].in_the_way
    assert guests.admit(two, 3.0) == (True, None)


def test_no_more_is_remembered_of_guests_than_fits() -> None:
    order = GuestOrder()
    many = [b"%d" % number for number in range(2 * MOST_REMEMBERED)]
    order.note(many, 1.0)
    for peer in many:
        order.refused(peer)
    assert len(order._stayed) == len(order._wants) == MOST_REMEMBERED


def test_a_refusal_for_lack_of_places_costs_no_entry_and_refusals_are_limited() -> None:
    entries = Entries(QuicSettings(session_burst=2, sessions_per_minute=6.0, refusals_per_minute=60.0))
    peer = MEMBERS[0]
    for _ in range(30):
        assert entries.wait(peer, 0.0) == 0.0
        entries.take(peer, 0.0)
        entries.had_no_place(peer, 0.0)
    assert entries.wait(peer, 0.0) == 1.0
    assert entries.wait(MEMBERS[1], 0.0) == 0.0
    assert entries.wait(peer, 1.0) == 0.0
    for _ in range(2):
        entries.take(peer, 1.0)
    assert entries.wait(peer, 1.0) == 10.0
    assert entries.wait_to_dial(MEMBERS[1], 0.0) == 0.0
    entries.was_refused(MEMBERS[1], 0.0)
    assert entries.wait_to_dial(MEMBERS[1], 0.0) == QuicSettings().retry_most_seconds / 2
    assert entries.wait(MEMBERS[1], 0.0) == 0.0
