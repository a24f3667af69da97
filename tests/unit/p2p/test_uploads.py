"""Which waiting request is answered next."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from psyche_core.p2p.downloads import BYTES_AT_ONCE, MOST_AT_ONCE
from psyche_core.p2p.uploads import FORGIVEN_SECONDS, UploadQueue

A, B, C = (bytes([letter]) * 32 for letter in b"abc")
ONE, TWO = b"1" * 32, b"2" * 32


LARGE, SMALL, TINY = 22_000_000, 54_000, 20


def sent(queue: UploadQueue, *, now: float, seconds: float = 1.0) -> tuple[bytes, bytes] | None:
    """Which request gets the next turn, if it takes this long and all of the result."""
    request = queue.begin(now)
    if request is not None:
        queue.end(*request, complete=True, now=now + seconds)
    return request


def test_the_peer_that_had_least_comes_first_then_its_rarest_result_then_what_waits_longest() -> None:
    queue = UploadQueue(at_once=1)
    for name, peer in ((ONE, A), (ONE, B), (TWO, A), (ONE, C), (TWO, C)):
        assert queue.add(name, peer, size=LARGE)
    answered: list[tuple[bytes, bytes]] = []
    while (request := queue.begin(float(len(answered)))) is not None:
        answered.append(request)
        assert queue.begin(0.0) is None, "one at once"
        queue.end(*request, complete=True, now=float(len(answered)))
    assert answered == [(ONE, A), (TWO, C), (ONE, B), (TWO, A), (ONE, C)]


def test_who_asks_for_everything_again_and_again_keeps_nobody_from_what_it_asks_for() -> None:
    """Results that nobody has got yet, of a peer that wants them all, beside one that many have got."""
    queue = UploadQueue(at_once=1)
    for number in range(100, 103):
        queue.add(ONE, bytes([number]), size=LARGE)
        sent(queue, now=0.0)
    for number in range(8):
        assert queue.add(bytes([number]), A, size=LARGE)
    assert sent(queue, now=1.0) == (b"\0", A)
    queue.add(ONE, B, size=LARGE)
    assert sent(queue, now=2.0) == (ONE, B)


def test_what_a_peer_has_had_comes_after_what_another_has_not_and_counts_once() -> None:
    queue = UploadQueue(at_once=1)
    for number in range(10):
        queue.add(TWO, A, size=LARGE)
        assert sent(queue, now=float(number)) == (TWO, A)
    queue.add(ONE, B, size=LARGE)
    assert sent(queue, now=10.0, seconds=500.0) == (ONE, B)
    queue.add(TWO, A, size=LARGE)
    queue.add(ONE, A, size=LARGE, beside=True)
    queue.add(TWO, B, size=LARGE)
    assert sent(queue, now=510.0) == (ONE, A)
    assert sent(queue, now=511.0) == (TWO, B), "B has had more, and A this"
    assert {name: len(peers) for name, peers in queue._got.items()} == {ONE: 2, TWO: 2}
    assert queue._remembered == 4


def test_what_is_being_sent_counts_as_sent() -> None:
    queue = UploadQueue()
    queue.add(ONE, A, size=LARGE)
    queue.begin(0.0)
    queue.add(ONE, B, size=LARGE)
    queue.add(TWO, B, size=LARGE)
    assert queue.begin(0.0) == (TWO, B)


def test_neighbours_come_before_others() -> None:
    queue = UploadQueue(at_once=1)
    queue.add(ONE, A, size=LARGE, beside=True)
    queue.add(ONE, B, size=LARGE)
    assert sent(queue, now=0.0) == (ONE, B)
    queue.add(TWO, B, size=LARGE)
    assert sent(queue, now=1.0) == (TWO, B)
    assert sent(queue, now=2.0) == (ONE, A)


def begun(queue: UploadQueue) -> int:
    """How many requests get a turn at once now."""
    return sum(queue.begin(0.0) is not None for _ in range(20))


def test_of_small_results_more_are_sent_at_once() -> None:
    for size, many in ((LARGE, 2), (1_300_000, 3), (SMALL, 16)):
        queue = UploadQueue(per_peer=20)
        for number in range(20):
            assert queue.add(bytes([number]), A, size=size)
        assert begun(queue) == many


def test_a_small_result_makes_no_place_for_large_ones_and_none_overtakes_the_next() -> None:
    queue = UploadQueue(per_peer=20)
    for number in range(4):
        queue.add(bytes([number]), A, size=LARGE)
    queue.add(ONE, B, size=TINY)
    assert begun(queue) == 2
    assert set(queue._sending) == {(b"\0", A), (ONE, B)}, "one that is large, and the other peer's"
    queue.end(ONE, B, complete=True, now=0.1)
    queue.add(TWO, B, size=TINY)
    assert queue.begin(0.1) == (TWO, B), "it is the peer that has had least"
    queue.add(b"3" * 32, C, size=TINY)
    assert queue.begin(0.1) is None
    queue = UploadQueue()
    for number in range(3):
        queue.add(bytes([number]), A, size=TINY)
    assert begun(queue) == 3
    queue.add(ONE, B, size=LARGE)
    queue.add(TWO, C, size=TINY)
    assert queue.begin(0.2) is None, "the large one is next, and would have to share the line with three"
    queue.end(b"\0", A, complete=True, now=0.3)
    assert queue.begin(0.3) is None
    queue.end(b"\1", A, complete=True, now=0.3)
    assert queue.begin(0.3) == (ONE, B)


def test_what_was_withdrawn_is_not_answered_and_does_not_count_as_sent() -> None:
    queue = UploadQueue(at_once=1)
    queue.add(ONE, A, size=LARGE)
    assert queue.begin(0.0) == (ONE, A)
    queue.add(TWO, B, size=LARGE)
    queue.add(ONE, B, size=LARGE)
    queue.add(ONE, C, size=LARGE)
    queue.end(ONE, A, complete=False, now=0.0)
    queue.end(TWO, B, complete=False, now=0.0)
    queue.end(TWO, B, complete=False, now=0.0)  # a second time does nothing
    assert queue.begin(0.0) == (ONE, B)
    queue.end(ONE, B, complete=True, now=1.0)
    queue.add(TWO, B, size=LARGE)
    queue.add(TWO, A, size=LARGE)
    assert queue.begin(1.0) == (TWO, A), "what was withdrawn there does not count as sent to it"


def test_a_peer_s_requests_are_limited_and_asked_once() -> None:
    queue = UploadQueue(at_once=1, per_peer=2)
    assert queue.add(ONE, A, size=LARGE)
    assert not queue.add(ONE, A, size=LARGE)
    assert queue.add(TWO, A, size=LARGE)
    assert not queue.add(b"3" * 32, A, size=LARGE)
    assert queue.add(b"3" * 32, B, size=LARGE), "others are not held up by it"
    assert queue.begin(0.0) == (ONE, A)
    assert not queue.add(ONE, A, size=LARGE), "it is being answered"
    assert queue.add(b"3" * 32, A, size=LARGE)


def test_a_result_that_has_expired_is_not_remembered_and_what_is_remembered_is_bounded() -> None:
    queue = UploadQueue(sendings=3)
    for name, peer in ((ONE, A), (ONE, B), (TWO, A), (TWO, B)):
        queue.add(name, peer, size=LARGE)
        queue.begin(0.0)
        queue.end(name, peer, complete=True, now=0.0)
    assert dict(queue._got) == {TWO: {A, B}}
    queue.expire({ONE})
    assert not queue._got
    assert queue._remembered == 0


def held(queue: UploadQueue, peer: bytes, seconds: float, *, now: float) -> None:
    """A turn of a peer that has asked for something, which it withdraws after this time."""
    request = queue.begin(now)
    assert request is not None
    assert request[1] == peer
    queue.end(*request, complete=False, now=now + seconds)


def test_who_withdraws_turns_late_comes_after_all_others_even_for_what_nobody_else_asks_for() -> None:
    queue = UploadQueue(at_once=1)
    queue.add(ONE, A, size=LARGE)
    held(queue, A, 9.0, now=0.0)
    queue.add(ONE, A, size=LARGE)
    held(queue, A, 9.0, now=9.0)
    for number in range(4):
        queue.add(bytes([number]), C, size=LARGE)
        assert queue.begin(18.0) is not None
        queue.end(bytes([number]), C, complete=True, now=18.0)
        queue.add(bytes([number]), B, size=LARGE)
    queue.add(ONE, A, size=LARGE)
    answered = []
    while (request := queue.begin(18.0)) is not None:
        answered.append(request[1])
        queue.end(*request, complete=True, now=18.0)
    assert answered == [B, B, B, B, A], "it is not left out"


def test_what_was_wasted_is_forgiven_in_time() -> None:
    queue = UploadQueue(at_once=1)
    queue.add(C, B, size=LARGE)
    sent(queue, now=-40.0, seconds=40.0)
    queue.add(ONE, A, size=LARGE)
    held(queue, A, 15.0, now=0.0)
    queue.add(ONE, A, size=LARGE)
    queue.add(ONE, B, size=LARGE)
    held(queue, B, 0.05, now=15.0)  # though it has had longer turns
    queue.add(ONE, B, size=LARGE)
    held(queue, A, 0.05, now=15.0 + FORGIVEN_SECONDS)
    held(queue, B, 0.05, now=20.0 + FORGIVEN_SECONDS)
    for at in range(1, 40):
        queue.add(TWO, A, size=LARGE)
        queue.begin(1000.0 * at)
        queue.end(TWO, A, complete=False, now=1000.0 * at + 0.1)
    assert set(queue._wasted._kept) == {A}, "nothing is kept of what is forgiven"


def test_withdrawing_soon_wastes_little_and_taking_a_small_result_slowly_wastes_a_turn() -> None:
    """The other peer has had longer turns. The size of what is asked for later changes nothing."""
    for size, seconds, first in ((SMALL, 20.0, (ONE, B)), (LARGE, 20.0, (TWO, A))):
        queue = UploadQueue(at_once=1)
        queue.add(C, B, size=LARGE)
        sent(queue, now=-40.0, seconds=40.0)
        queue.add(ONE, A, size=size)
        assert queue.begin(0.0) == (ONE, A)
        queue.add(C, A, size=LARGE if size == SMALL else TINY)
        queue.end(ONE, A, complete=True, now=seconds)
        queue.end(C, A, complete=False, now=seconds)
        for at in range(50):
            queue.add(TWO, A, size=LARGE)
            held(queue, A, 0.1, now=seconds + at)
        queue.add(TWO, A, size=LARGE)
        queue.add(ONE, B, size=LARGE)
        assert queue.begin(seconds + 50.0) == first


def test_a_turn_that_lasts_too_long_makes_place_and_was_wasted_and_its_result_counts_when_it_has_come() -> None:
    queue = UploadQueue(at_once=1)
    queue.add(ONE, A, size=LARGE)
    assert queue.begin(0.0) == (ONE, A)
    queue.overdue(ONE, A, now=11.0)
    queue.overdue(ONE, A, now=11.0)
    queue.add(TWO, A, size=LARGE)
    queue.add(ONE, B, size=LARGE)
    assert queue.begin(11.0) == (ONE, B)
    assert not queue._got
    queue.end(ONE, A, complete=True, now=30.0)
    assert queue._got == {ONE: {A}}
    assert queue.begin(30.0) is None
    queue.end(ONE, B, complete=False, now=12.0)
    queue.add(C, C, size=LARGE)
    assert sent(queue, now=12.0, seconds=5.0) == (C, C)
    queue.overdue(ONE, B, now=30.0)  # its turn is over already
    queue.end(TWO, A, complete=False, now=30.0)
    queue._wasted = type(queue._wasted)()
    queue.add(TWO, A, size=LARGE)
    queue.add(TWO, C, size=LARGE)
    assert queue.begin(30.0) == (TWO, C), "the other had a longer turn"


SIZES = {ONE: LARGE, TWO: 1_300_000, C: SMALL, A: SMALL, B: TINY}


class Requests(RuleBasedStateMachine):
    """A queue beside sets."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = UploadQueue(per_peer=4, sendings=1000)
        self.waiting: set[tuple[bytes, bytes]] = set()
        self.sending: set[tuple[bytes, bytes]] = set()
        self.got: set[tuple[bytes, bytes]] = set()
        self.now = 0.0

    @rule(name=st.sampled_from(list(SIZES)), peer=st.sampled_from((A, B, C)))
    def add(self, name: bytes, peer: bytes) -> None:
        request = (name, peer)
        few = sum(each[1] == peer for each in self.waiting) < 4
        expected = few and request not in self.waiting | self.sending
        assert self.queue.add(name, peer, size=SIZES[name], beside=peer == C) == expected
        if expected:
            self.waiting.add(request)

    @rule(seconds=st.floats(0.0, 30.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def begin(self) -> None:
        request = self.queue.begin(self.now)
        if request is None:
            assert len(self.sending) >= 2 or not self.waiting
            return

        assert request not in self.got or self.waiting <= self.got, "somebody has not had this yet"
        self.waiting.remove(request)
        self.sending.add(request)
        assert len(self.sending) <= 2 or sum(SIZES[name] for name, _ in self.sending) <= BYTES_AT_ONCE
        assert len(self.sending) <= MOST_AT_ONCE

    @rule(name=st.sampled_from(list(SIZES)), peer=st.sampled_from((A, B, C)), complete=st.booleans())
    def end(self, name: bytes, peer: bytes, complete: bool) -> None:
        complete = complete and (name, peer) in self.sending
        self.queue.end(name, peer, complete=complete, now=self.now)
        if complete:
            self.got.add((name, peer))
        self.waiting.discard((name, peer))
        self.sending.discard((name, peer))

    @rule(name=st.sampled_from(list(SIZES)), peer=st.sampled_from((A, B, C)))
    def overdue(self, name: bytes, peer: bytes) -> None:
        self.queue.overdue(name, peer, now=self.now)
        self.sending.discard((name, peer))

    @rule(kept=st.sets(st.sampled_from(list(SIZES))))
    def expire(self, kept: set[bytes]) -> None:
        self.queue.expire(kept)
        self.got = {each for each in self.got if each[0] in kept}

    @invariant()
    def counts_are_right(self) -> None:
        assert set(self.queue._waiting) == self.waiting
        assert {(name, peer) for name, peers in self.queue._got.items() for peer in peers} == self.got
        assert self.queue._remembered == len(self.got)
        assert +self.queue._by_peer == {
            peer: count for peer in (A, B, C) if (count := sum(each[1] == peer for each in self.waiting))
        }


TestRequests = Requests.TestCase
