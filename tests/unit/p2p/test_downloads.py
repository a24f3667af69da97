"""What is asked for next, at whom, and what is withdrawn."""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from psyche_core.p2p.downloads import Downloads
from psyche_core.p2p.fetch_plan import MAX_LOST, Answer
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
    assert downloads.lags(ONE)
    assert not downloads.lags(ONE)
    other = ({A, B} - {source}).pop()
    assert (ONE, other) in begun(downloads, [other])
    assert downloads.started(ONE, other) == (), "the lagging one goes on"
    assert not downloads.lags(ONE), "one at most"
    assert downloads.finished(ONE, giver=source) == (other,)
    assert downloads._receiving == 0


def test_of_two_sources_either_can_be_dropped() -> None:
    for dropped in (A, B):
        _, downloads = made({A: [ONE], B: [ONE]}, at_once=1, sources=2)
        assert (ONE, A) in begun(downloads)
        downloads.started(ONE, A)
        downloads.lags(ONE)
        assert begun(downloads) == [(ONE, B)]
        downloads.started(ONE, B)
        downloads.drop(ONE, dropped)
        assert downloads._late == ({A} if dropped == A else set()), "the one that is stopped was slower"
        assert downloads._receiving == 1
        assert downloads.begin(PEERS) is None
        assert downloads.finished(ONE) == ()
        downloads.drop(ONE, dropped)  # does nothing


def test_no_more_sources_lag_than_there_are_places() -> None:
    _, downloads = made({A: [ONE], B: [TWO]}, at_once=1)
    begun(downloads)
    downloads.started(ONE, A)
    assert downloads.lags(ONE)
    assert begun(downloads) == []  # it waits already
    assert downloads.started(TWO, B) == ()
    assert not downloads.lags(TWO)


@pytest.mark.parametrize("late", ["lags", "give up", "time"])
def test_who_was_late_comes_after_other_holders_and_has_one_place_until_the_next_epoch(late: str) -> None:
    names = [bytes([number]) * 16 for number in range(6)]
    book, downloads = made({A: [ONE]}, at_once=16, sources=1, per_peer=2)
    begun(downloads)
    downloads.started(ONE, A)
    if late == "lags":
        downloads.lags(ONE)
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
    assert downloads.lags(ONE)
    assert downloads.started(TWO, A) is None
    downloads.finished(ONE)
    assert downloads.started(THREE, A) == ()


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
        second = peer in self.late and peer in (*self.coming.values(), *self.lagging.values())
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

    @rule(name=st.sampled_from(NAMES))
    def lag(self, name: bytes) -> None:
        possible = name in self.coming and name not in self.lagging and len(self.lagging) < 2
        assert self.downloads.lags(name) == possible
        if possible:
            self.lagging[name] = self.coming.pop(name)
            self.late.add(self.lagging[name])

    @precondition(lambda self: self.lagging.keys() & self.coming.keys())
    @rule(data=st.data(), older=st.booleans())
    def drop(self, data: st.DataObject, older: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.lagging.keys() & self.coming.keys())))
        dropped = self.lagging[name] if older else self.coming[name]
        self.downloads.drop(name, dropped)
        self.requests.remove((name, dropped))
        if not older:
            self.coming[name] = self.lagging[name]
            self.late.discard(self.lagging[name])
        del self.lagging[name]

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), answer=st.sampled_from([each for each in Answer if each is not Answer.RELEASED]))
    def fail(self, data: st.DataObject, answer: Answer) -> None:
        name, peer = data.draw(st.sampled_from(sorted(self.requests)))
        self.downloads.failed(name, peer, answer)
        self.requests.remove((name, peer))
        for found in (self.coming, self.lagging):
            if found.get(name) == peer:
                del found[name]

    @rule(name=st.sampled_from(NAMES))
    def finish(self, name: bytes) -> None:
        source = self.coming.pop(name, None)
        self.lagging.pop(name, None)
        mine = {each for each in self.requests if each[0] == name}
        others = self.downloads.finished(name)
        assert {(name, other) for other in others} == mine - {(name, source or b"")}
        self.requests -= mine

    @rule(peer=st.sampled_from(PEERS))
    def leave(self, peer: bytes) -> None:
        self.downloads.forget_peer(peer)
        self.requests = {each for each in self.requests if each[1] != peer}
        self.coming = {name: source for name, source in self.coming.items() if source != peer}
        self.lagging = {name: source for name, source in self.lagging.items() if source != peer}

    @invariant()
    def limits_hold(self) -> None:
        assert self.downloads._receiving == len(self.coming) <= 4, "two, and two that lagged and are waited for again"
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
