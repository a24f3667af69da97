"""What is asked for next, at whom, and what is withdrawn."""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from psyche_core.p2p.downloads import LAGGING, MOST_ABSENT, MOST_FORGIVEN, Downloads
from psyche_core.p2p.fetch_plan import MAX_LOST, Answer, FetchPlan
from psyche_core.p2p.holders import HolderBook

A, B, C, D = PEERS = [bytes([letter]) * 32 for letter in b"abcd"]
ONE, TWO, THREE = NAMES = [bytes([digit]) * 16 for digit in b"123"]


def made(announced: dict[bytes, list[bytes]], **limits: int) -> tuple[HolderBook, Downloads]:
    """The downloads of a member that lacks all NAMES. announced: results by peer."""
    book = HolderBook()
    for peer, names in announced.items():
        book.note(peer, names)
    downloads = Downloads(book, draw=random.Random(1), **limits)
    for name in NAMES:
        downloads.want(name)
        downloads.want(name)
    assert len(downloads) == len(NAMES)
    return book, downloads


def begun(downloads: Downloads, reachable: list[bytes] = PEERS) -> list[tuple[bytes, bytes]]:
    found = []
    while (request := downloads.begin(reachable)) is not None:
        found.append(request)
    return found


def test_what_was_asked_for_least_comes_first_then_what_fewest_have() -> None:
    _, downloads = made({A: [ONE, TWO], B: [ONE], C: [ONE]}, sources=2)
    asked = [name for name, _ in begun(downloads)]
    assert asked == [TWO, ONE, ONE]


def test_the_holder_where_fewest_requests_wait_is_asked() -> None:
    _, downloads = made({A: NAMES, B: [THREE]}, sources=1)
    asked = dict(begun(downloads))
    assert asked == {ONE: A, TWO: A, THREE: B}


def test_no_peer_gets_too_many_requests_and_only_reachable_ones_get_any() -> None:
    _, downloads = made({A: NAMES, B: NAMES}, per_peer=2)
    assert len(begun(downloads, [A])) == 2
    assert begun(downloads, [C]) == []


def test_the_first_that_sends_is_the_source_and_the_others_are_told() -> None:
    _, downloads = made({peer: [ONE] for peer in PEERS}, sources=3)
    asked = [peer for _, peer in begun(downloads)]
    assert len(set(asked)) == 3
    assert sorted(downloads.started(ONE, asked[1]) or ()) == sorted({*asked} - {asked[1]})
    assert downloads.started(ONE, asked[0]) is None, "its answer crossed our withdrawal"
    assert downloads.begin(PEERS) is None
    assert downloads.finished(ONE) == ()
    assert ONE not in downloads
    assert downloads.started(ONE, asked[1]) is None


def test_when_enough_come_a_further_one_is_withdrawn_and_asked_for_later() -> None:
    _, downloads = made({A: [ONE], B: [TWO]}, at_once=1)
    assert dict(begun(downloads)) == {ONE: A, TWO: B}
    assert downloads.started(ONE, A) == ()
    assert downloads.started(TWO, B) is None
    assert downloads.begin(PEERS) is None
    downloads.finished(ONE)
    assert begun(downloads) == [(TWO, B)]


@pytest.mark.parametrize(("size", "count"), [(22_000_000, 2), (1_000_000, 4), (54_000, 16), (0, 16)])
def test_of_small_results_more_are_received_at_once(size: int, count: int) -> None:
    names = [bytes([number]) * 8 for number in range(20)]
    _, downloads = made({A: names, B: names, C: names}, sources=1, per_peer=20)
    for name in names:
        downloads.want(name)
    downloads.expect_size(size)
    asked = begun(downloads)
    assert [downloads.started(*request) for request in asked].count(()) == count


def test_who_does_not_have_what_it_announced_is_asked_last_and_not_again_for_that() -> None:
    _, downloads = made({A: NAMES, B: NAMES}, sources=1, per_peer=1)
    failed = next(name for name, peer in begun(downloads, [A]))
    downloads.failed(failed, A, Answer.ABSENT)
    assert failed not in [name for name, peer in begun(downloads, [A])]
    _, downloads = made({A: NAMES, B: NAMES}, sources=1)
    (name,) = [name for name, _ in [downloads.begin([A]) or (b"", b"")]]
    downloads.failed(name, A, Answer.ABSENT)
    assert {peer for _, peer in begun(downloads)} == {B}


def test_after_a_failure_those_are_asked_again_where_the_request_was_withdrawn() -> None:
    _, downloads = made({A: [ONE], B: [ONE]}, sources=2)
    begun(downloads)
    assert downloads.started(ONE, A) == (B,)
    downloads.failed(ONE, A, Answer.FALSE)
    assert begun(downloads) == [(ONE, B)]
    downloads.failed(ONE, C, Answer.FALSE)  # was never asked: does nothing
    assert downloads.started(ONE, B) == ()


def test_a_lost_peer_is_asked_again_when_it_announces_again_a_few_times() -> None:
    book, downloads = made({A: [ONE]})
    for _ in range(MAX_LOST):
        assert begun(downloads) == [(ONE, A)]
        downloads.started(ONE, A)
        downloads.forget_peer(A)
        assert begun(downloads) == []
        book.note(A, [ONE])
    assert begun(downloads) == []


def test_doubted_peers_are_asked_after_others() -> None:
    _, downloads = made({A: [ONE], B: [ONE]}, sources=1)
    assert downloads.begin(PEERS, doubted=[A]) == (ONE, B)


def test_after_an_announcement_only_what_was_announced_is_considered() -> None:
    _, downloads = made({A: NAMES})
    assert downloads.begin(PEERS, among=[TWO, D]) == (TWO, A)
    assert downloads.begin(PEERS, among=[TWO]) is None
    assert len(begun(downloads)) == 2


def test_a_source_that_lags_keeps_no_place_and_another_may_send_the_same_beside_it() -> None:
    _, downloads = made({A: [ONE, TWO], B: [ONE]}, at_once=1)
    assert downloads.begin(PEERS, among=[ONE]) is not None
    (source,) = downloads._wanted[ONE].asked
    assert downloads.started(ONE, source) == ()
    assert downloads.begin(PEERS) is None
    assert downloads.lags(ONE, room=False)
    assert not downloads.lags(ONE, room=False)
    other = ({A, B} - {source}).pop()
    assert (ONE, other) in begun(downloads, [other])
    assert downloads.started(ONE, other) == (), "the lagging one goes on"
    assert not downloads.lags(ONE, room=False), "one at most"
    assert downloads.finished(ONE, giver=source) == (other,)
    assert downloads._receiving == 0


def test_of_two_sources_either_can_be_dropped() -> None:
    for dropped in (A, B):
        _, downloads = made({A: [ONE], B: [ONE]}, at_once=1, sources=2)
        assert (ONE, A) in begun(downloads)
        downloads.started(ONE, A)
        downloads.lags(ONE, room=False)
        assert begun(downloads) == [(ONE, B)]
        downloads.started(ONE, B)
        downloads.drop(ONE, dropped)
        assert downloads._late == ({A} if dropped == A else set()), "the one that is stopped was slower"
        assert downloads._receiving == 1
        assert downloads.begin(PEERS) is None
        assert downloads.finished(ONE) == ()
        downloads.drop(ONE, dropped)  # does nothing


def test_on_a_full_line_no_more_sources_lag_than_there_are_places() -> None:
    _, downloads = made({A: [ONE], B: [TWO]}, at_once=1)
    begun(downloads)
    downloads.started(ONE, A)
    assert downloads.lags(ONE, room=False)
    assert begun(downloads) == []  # it waits already
    assert downloads.started(TWO, B) == ()
    assert not downloads.lags(TWO, room=False)
    assert downloads.lags(TWO, room=True)


def test_on_a_line_with_room_all_slow_sources_give_up_their_places_and_of_too_many_one_must_be_stopped() -> None:
    names = [bytes([number]) * 16 for number in range(LAGGING + 1)]
    peers = [bytes([number]) * 32 for number in range(LAGGING + 1)]
    book, downloads = made({}, at_once=1, sources=1)
    for name, peer in zip(names, peers, strict=True):
        downloads.want(name)
        book.note(peer, [name])
        assert not downloads.surplus()
        assert downloads.begin(peers) == (name, peer)
        assert downloads.started(name, peer) == ()
        assert downloads.lags(name, room=True)
    assert set(downloads.surplus()) == {*zip(names, peers, strict=True)}
    downloads.drop(names[0], peers[0], room=True)
    assert not downloads.surplus()
    assert downloads.begin(peers) is None, "until it is allowed to ask again"
    assert downloads._receiving == 0


def test_where_the_line_has_room_a_slow_source_takes_no_place_again_though_the_one_tried_beside_it_was_slower() -> None:
    _, downloads = made({A: [ONE], B: [ONE], C: [ONE]}, at_once=1, sources=2)
    source = begun(downloads)[0][1]
    downloads.started(ONE, source)
    downloads.lags(ONE, room=True)
    ((_, tried),) = begun(downloads)
    downloads.started(ONE, tried)
    downloads.drop(ONE, tried, room=True)
    assert source in downloads._late
    assert downloads._receiving == 0
    (third,) = {A, B, C} - {source, tried}
    assert begun(downloads) == [(ONE, third)], "and the next is tried"


def test_on_a_full_line_nothing_is_asked_for_that_a_slow_source_sends() -> None:
    _, downloads = made({A: [ONE]}, at_once=1)
    begun(downloads)
    downloads.started(ONE, A)
    downloads.lags(ONE, room=True)
    downloads._holders.note(B, [ONE])
    assert downloads.begin(PEERS, room=False) is None
    assert downloads.begin(PEERS, room=True) == (ONE, B)


def test_a_slow_source_is_forgiven_once_in_an_epoch() -> None:
    book, downloads = made({}, at_once=1, sources=2)

    def forgiven(name: bytes) -> bool:
        for peer in (A, B):
            book.note(peer, [name])
        assert downloads.begin([A]) == (name, A)
        downloads.started(name, A)
        downloads.lags(name, room=True)
        assert downloads.begin([B]) == (name, B)
        downloads.started(name, B)
        downloads.drop(name, B)
        downloads.finished(name)
        return A not in downloads._late

    assert [forgiven(ONE), forgiven(TWO)] == [True, False]
    downloads.forgive()
    assert A not in downloads._late


@pytest.mark.parametrize("how", ["closed", "stopped"])
def test_who_stops_in_the_middle_is_late_also_when_it_connects_again_and_gets_one_request(how: str) -> None:
    book, downloads = made({A: NAMES, C: [TWO]}, sources=1)
    begun(downloads)
    downloads.started(ONE, A)
    if how == "closed":
        downloads.forget_peer(A)
    else:
        downloads.failed(ONE, A, Answer.LOST)
        downloads.forget_peer(A)
    assert A in downloads._late
    book.note(A, NAMES)
    assert [peer for _, peer in begun(downloads)].count(A) == 1


def test_who_had_been_asked_only_when_its_connection_ended_is_doubted() -> None:
    book, downloads = made({A: NAMES}, sources=1)
    begun(downloads)
    downloads.forget_peer(A)
    assert (A in downloads._failed, A in downloads._late) == (True, False)
    for peer in (A, B):
        book.note(peer, NAMES)
    assert {peer for _, peer in begun(downloads)} == {B}


def test_who_is_late_is_not_asked_beside_somebody_who_is_not() -> None:
    _, downloads = made({A: [ONE], B: [ONE], C: [TWO]}, sources=2)
    downloads.give_up(A)
    assert sorted(begun(downloads)) == [(ONE, B), (TWO, C)]
    downloads.give_up(B)
    assert begun(downloads) == [(ONE, A)], "both are late"


def test_who_announces_again_and_again_what_it_does_not_have_is_asked_twice_and_is_late() -> None:
    book, downloads = made({A: [ONE]})
    for _ in range(2):
        assert downloads.may_have(ONE, A)
        assert A not in downloads._late
        assert begun(downloads) == [(ONE, A)]
        downloads.failed(ONE, A, Answer.ABSENT)
        book.note(A, [ONE])
    assert not downloads.may_have(ONE, A)
    assert A in downloads._late
    assert begun(downloads) == []


def test_who_has_given_nothing_sends_one_result_at_once_as_long_as_others_are_asked() -> None:
    book, downloads = made({A: [ONE, TWO], B: [THREE]})
    begun(downloads)
    assert downloads.started(ONE, A) == ()
    assert downloads.started(TWO, A) is None
    downloads.finished(ONE)
    book.note(A, [ONE])
    downloads.want(ONE)
    begun(downloads)
    assert downloads.started(TWO, A) == ()
    assert downloads.started(ONE, A) == (), "it has given one"
    _, downloads = made({A: [ONE, TWO]})
    begun(downloads)
    assert downloads.started(ONE, A) == ()
    assert downloads.started(TWO, A) == (), "nobody else is asked"


@pytest.mark.parametrize("late", ["lags", "give up", "time"])
def test_who_was_late_comes_after_other_holders_and_has_one_place_until_the_next_epoch(late: str) -> None:
    names = [bytes([number]) * 16 for number in range(6)]
    book, downloads = made({A: [ONE]}, at_once=16, sources=1, per_peer=2)
    begun(downloads)
    downloads.started(ONE, A)
    if late == "lags":
        downloads.lags(ONE, room=False)
    elif late == "give up":
        downloads.give_up(A)
    else:
        downloads.ran_out(ONE)
    downloads.finished(ONE)
    for name in names:
        downloads.want(name)
    for peer in (A, B):
        book.note(peer, names)
    assert [peer for _, peer in begun(downloads)] == [B, B, A]
    downloads.forgive()
    assert [peer for _, peer in begun(downloads)] == [A]


def test_of_a_late_peer_one_result_comes_at_once_though_more_requests_wait_there() -> None:
    _, downloads = made({A: NAMES}, at_once=16, sources=1)
    assert len(begun(downloads)) == 3
    assert downloads.started(ONE, A) == ()
    assert downloads.lags(ONE, room=False)
    assert downloads.started(TWO, A) is None
    downloads.finished(ONE)
    assert downloads.started(THREE, A) == ()


def test_only_so_many_requests_wait_as_places_are_free_and_some_more() -> None:
    names = [bytes([number]) * 16 for number in range(20)]
    _, downloads = made({A: names, B: names, C: names}, sources=2)
    for name in names:
        downloads.want(name)
    downloads.expect_size(54_000)
    downloads.limit(places=3, spare=2)
    asked = begun(downloads)
    assert len(asked) == 5
    assert len({name for name, _ in asked}) == 5, "each for another result"
    assert downloads.starved
    assert [downloads.started(*request) for request in asked].count(()) == 3
    assert (downloads.full, downloads.starved) == (True, False)
    assert begun(downloads) == []
    downloads.finished(asked[0][0])
    assert len(begun(downloads)) == 3
    downloads.limit(places=20, spare=0)
    assert downloads.places == 16, "not more than of results of this size"


def test_a_source_that_our_own_line_may_make_slow_is_not_late_unless_one_that_began_later_is_done_before() -> None:
    book, downloads = made({A: [ONE], B: [TWO]}, at_once=1, sources=2)
    begun(downloads)
    assert downloads.started(ONE, A) == ()
    assert downloads.lags(ONE, room=True, excused=True)
    assert A not in downloads._late
    book.note(B, [ONE])
    assert (ONE, B) in begun(downloads, [B])
    assert downloads.started(ONE, B) == ()
    downloads.drop(ONE, B)
    assert downloads._receiving == 1
    assert not downloads._late
    assert not downloads._forgiven, "there was nothing to forgive"
    assert downloads.lags(ONE, room=True, excused=True)
    assert (ONE, B) in begun(downloads, [B])
    assert downloads.started(ONE, B) == ()
    assert downloads.finished(ONE, giver=B) == (A,)
    assert downloads._late == {A}


def test_a_source_that_was_excused_is_late_when_it_is_slow_by_itself() -> None:
    _, downloads = made({A: [ONE]}, at_once=1)
    begun(downloads)
    downloads.started(ONE, A)
    assert downloads.lags(ONE, room=True, excused=True)
    assert not downloads.lags(ONE, room=True, excused=True)
    assert not downloads._late
    assert not downloads.lags(ONE, room=True)
    assert downloads._late == {A}


def test_an_answer_costs_no_look_at_all_other_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """255 results that five neighbours announced and had not, twice each: each answer looked at all 255."""
    looked = []
    plainly = FetchPlan.ask_again

    def ask_again(plan: FetchPlan) -> bool:
        looked.append(plan)
        return plainly(plan)

    monkeypatch.setattr(FetchPlan, "ask_again", ask_again)
    names = [b"%016d" % number for number in range(255)]
    _, downloads = made({A: names})
    for name in names:
        downloads.want(name)
    for name, peer in begun(downloads):
        downloads.failed(name, peer, Answer.ABSENT)
        assert len(looked) == 1
        looked.clear()


class Swarm(RuleBasedStateMachine):
    """Any order of events: the counts are right, the limits hold, and in the end everything is here."""

    def __init__(self) -> None:
        super().__init__()
        self.book = HolderBook()
        self.downloads = Downloads(self.book, at_once=2, sources=2, per_peer=2, draw=random.Random(1))
        self.requests: set[tuple[bytes, bytes]] = set()
        self.coming: dict[bytes, bytes] = {}
        self.lagging: dict[bytes, bytes] = {}
        self.late: set[bytes] = set()
        self.gave: set[bytes] = set()
        self.forgiven: dict[bytes, int] = {}

    def forgive(self, peer: bytes) -> None:
        if self.forgiven.get(peer, 0) < MOST_FORGIVEN:
            self.forgiven[peer] = self.forgiven.get(peer, 0) + 1
            self.late.discard(peer)

    def sends(self, peer: bytes) -> bool:
        return peer in (*self.coming.values(), *self.lagging.values())

    @rule(name=st.sampled_from(NAMES))
    def want(self, name: bytes) -> None:
        self.downloads.want(name)

    @rule(peer=st.sampled_from(PEERS), name=st.sampled_from(NAMES))
    def announced(self, peer: bytes, name: bytes) -> None:
        self.book.note(peer, [name])

    @rule(reachable=st.sets(st.sampled_from(PEERS)))
    def begin(self, reachable: set[bytes]) -> None:
        request = self.downloads.begin(reachable)
        if request is not None:
            name, peer = request
            assert peer in reachable
            assert request not in self.requests
            assert name in self.downloads
            assert name not in self.coming
            self.requests.add(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        name, peer = data.draw(st.sampled_from(sorted(self.requests)))
        if self.lagging.get(name) == peer:
            return  # it has begun before

        before = self.coming.get(name)
        asked = any(other != peer and not self.sends(other) for _, other in self.requests)
        second = self.sends(peer) and (peer in self.late or (peer not in self.gave and asked))
        others = self.downloads.started(name, peer)
        if before is not None or len(self.coming) >= 2 or second:
            assert others is None
            if before is None:
                self.requests.remove((name, peer))
            return

        assert others is not None
        self.coming[name] = peer
        mine = {each for each in self.requests if each[0] == name}
        assert {(name, other) for other in others} == mine - {(name, peer), (name, self.lagging.get(name))}
        self.requests -= {(name, other) for other in others}

    @rule(name=st.sampled_from(NAMES), room=st.booleans())
    def lag(self, name: bytes, room: bool) -> None:
        possible = name in self.coming and name not in self.lagging and (room or len(self.lagging) < 2)
        assert self.downloads.lags(name, room=room) == possible
        if possible:
            self.lagging[name] = self.coming.pop(name)
            self.late.add(self.lagging[name])

    @precondition(lambda self: self.lagging.keys() & self.coming.keys())
    @rule(data=st.data(), older=st.booleans(), room=st.booleans())
    def drop(self, data: st.DataObject, older: bool, room: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.lagging.keys() & self.coming.keys())))
        dropped = self.lagging[name] if older else self.coming[name]
        self.downloads.drop(name, dropped, room=room)
        self.requests.remove((name, dropped))
        if older:
            del self.lagging[name]
            return

        del self.coming[name]
        if not room:
            self.coming[name] = self.lagging.pop(name)
            self.forgive(self.coming[name])

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), answer=st.sampled_from([each for each in Answer if each is not Answer.RELEASED]))
    def fail(self, data: st.DataObject, answer: Answer) -> None:
        name, peer = data.draw(st.sampled_from(sorted(self.requests)))
        self.downloads.failed(name, peer, answer)
        self.requests.remove((name, peer))
        if peer in (self.coming.get(name), self.lagging.get(name)):
            self.late.add(peer)
        if name in self.downloads and self.downloads._wanted[name].absent[peer] >= MOST_ABSENT:
            self.late.add(peer)
        for found in (self.coming, self.lagging):
            if found.get(name) == peer:
                del found[name]

    @rule(name=st.sampled_from(NAMES))
    def finish(self, name: bytes) -> None:
        source = self.coming.pop(name, None)
        if source is not None:
            self.gave.add(source)
        self.lagging.pop(name, None)
        mine = {each for each in self.requests if each[0] == name}
        others = self.downloads.finished(name)
        assert {(name, other) for other in others} == mine - {(name, source or b"")}
        self.requests -= mine

    @rule(peer=st.sampled_from(PEERS))
    def leave(self, peer: bytes) -> None:
        self.downloads.forget_peer(peer)
        if self.sends(peer):
            self.late.add(peer)
        self.requests = {each for each in self.requests if each[1] != peer}
        self.coming = {name: source for name, source in self.coming.items() if source != peer}
        self.lagging = {name: source for name, source in self.lagging.items() if source != peer}

    @invariant()
    def who_is_late_is_known(self) -> None:
        assert self.downloads._late == self.late

    @invariant()
    def limits_hold(self) -> None:
        assert self.downloads._receiving == len(self.coming) <= 4, "two, and two that lagged and are waited for again"
        assert self.downloads._open == len(self.requests) - len(self.coming) - len(self.lagging)
        assert all(self.downloads._waiting.values()), "nobody is remembered at whom nothing waits"
        for peer in PEERS:
            assert self.downloads._waiting[peer] == sum(each[1] == peer for each in self.requests) <= 2
        for name in NAMES:
            assert sum(each[0] == name for each in self.requests) <= 2

    def teardown(self) -> None:
        honest = b"e" * 32
        for name in NAMES:
            if name in self.downloads:
                self.book.note(honest, [name])
        for name, peer in sorted(self.requests):
            self.downloads.failed(name, peer, Answer.ABSENT)
        for _ in range(len(NAMES)):
            request = self.downloads.begin([honest])
            if request is not None:
                assert self.downloads.started(*request) == ()
                assert self.downloads.finished(request[0]) == ()
        assert len(self.downloads) == 0


TestSwarm = Swarm.TestCase
