"""Which waiting request is answered next."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from psyche_core.p2p.uploads import FORGIVEN_SECONDS, UploadQueue

A, B, C = (bytes([letter]) * 32 for letter in b"abc")
ONE, TWO = b"1" * 32, b"2" * 32


def test_a_result_sent_less_often_comes_first_then_a_peer_that_got_less_then_who_waits_longest() -> None:
    queue = UploadQueue(at_once=1)
    for name, peer in ((ONE, A), (ONE, B), (TWO, A), (TWO, C)):
        assert queue.add(name, peer)
    answered = []
    while (request := queue.begin(0.0)) is not None:
        answered.append(request)
        assert queue.begin(0.0) is None, "one at once"
        queue.end(*request, complete=True, now=0.0)
    assert answered == [(ONE, A), (TWO, C), (ONE, B), (TWO, A)]


def test_of_small_results_more_are_sent_at_once() -> None:
    queue = UploadQueue(per_peer=20)
    for number in range(20):
        assert queue.add(bytes([number]), A)
    queue.expect_size(22_000_000)
    assert len([request for _ in range(20) if (request := queue.begin(0.0)) is not None]) == 2
    queue.expect_size(54_000)
    assert len([request for _ in range(20) if (request := queue.begin(0.0)) is not None]) == 14, "16 are being sent"


def test_what_was_withdrawn_is_not_answered_and_does_not_count_as_sent() -> None:
    queue = UploadQueue(at_once=1)
    queue.add(ONE, A)
    assert queue.begin(0.0) == (ONE, A)
    queue.add(TWO, B)
    queue.add(ONE, B)
    queue.add(ONE, C)
    queue.end(ONE, A, complete=False, now=0.0)
    queue.end(TWO, B, complete=False, now=0.0)
    queue.end(TWO, B, complete=False, now=0.0)  # a second time does nothing
    assert queue.begin(0.0) == (ONE, B)
    queue.end(ONE, B, complete=True, now=0.0)
    queue.add(TWO, B)
    queue.add(TWO, A)
    assert queue.begin(0.0) == (TWO, A), "what was withdrawn there does not count as sent to it"


def test_a_peer_s_requests_are_limited_and_asked_once() -> None:
    queue = UploadQueue(at_once=1, per_peer=2)
    assert queue.add(ONE, A)
    assert not queue.add(ONE, A)
    assert queue.add(TWO, A)
    assert not queue.add(b"3" * 32, A)
    assert queue.add(b"3" * 32, B), "others are not held up by it"
    assert queue.begin(0.0) == (ONE, A)
    assert not queue.add(ONE, A), "it is being answered"
    assert queue.add(b"3" * 32, A)


def test_a_result_that_has_expired_is_not_remembered() -> None:
    queue = UploadQueue()
    queue.add(ONE, A)
    queue.begin(0.0)
    queue.end(ONE, A, complete=True, now=0.0)
    queue.forget_result(ONE)
    queue.forget_result(TWO)
    assert not queue._sent


def held(queue: UploadQueue, peer: bytes, seconds: float, *, now: float) -> None:
    """A turn of a peer that has asked for something, which it withdraws after this time."""
    request = queue.begin(now)
    assert request is not None
    assert request[1] == peer
    queue.end(*request, complete=False, now=now + seconds)


def test_who_withdraws_turns_late_comes_after_all_others_even_for_what_nobody_else_asks_for() -> None:
    queue = UploadQueue(at_once=1)
    queue.add(ONE, A)
    held(queue, A, 9.0, now=0.0)
    queue.add(ONE, A)
    held(queue, A, 9.0, now=9.0)
    for number in range(4):
        queue.add(bytes([number]), C)
        assert queue.begin(18.0) is not None
        queue.end(bytes([number]), C, complete=True, now=18.0)
        queue.add(bytes([number]), B)
    queue.add(ONE, A)
    answered = []
    while (request := queue.begin(18.0)) is not None:
        answered.append(request[1])
        queue.end(*request, complete=True, now=18.0)
    assert answered == [B, B, B, B, A], "it is not left out"


def test_what_was_wasted_is_forgiven_in_time() -> None:
    queue = UploadQueue(at_once=1)
    queue.add(ONE, A)
    held(queue, A, 15.0, now=0.0)
    queue.add(ONE, A)
    queue.add(ONE, B)
    held(queue, B, 0.05, now=15.0)
    queue.add(ONE, B)
    held(queue, A, 0.05, now=15.0 + FORGIVEN_SECONDS)
    held(queue, B, 0.05, now=20.0 + FORGIVEN_SECONDS)
    for at in range(1, 40):
        queue.add(TWO, A)
        queue.begin(1000.0 * at)
        queue.end(TWO, A, complete=False, now=1000.0 * at + 0.1)
    assert set(queue._wasted) == {A}, "nothing is kept of what is forgiven"


def test_withdrawing_soon_wastes_little_and_taking_a_small_result_slowly_wastes_a_turn() -> None:
    for size, seconds, first in ((54_000, 20.0, (ONE, B)), (22_000_000, 20.0, (TWO, A))):
        queue = UploadQueue()
        queue.expect_size(size)
        queue.add(ONE, A)
        queue.begin(0.0)
        queue.end(ONE, A, complete=True, now=seconds)
        for at in range(50):
            queue.add(TWO, A)
            held(queue, A, 0.1, now=seconds + at)
        queue.add(TWO, A)
        queue.add(ONE, B)
        assert queue.begin(seconds + 50.0) == first


def test_a_turn_that_lasts_too_long_makes_place_and_was_wasted_and_its_result_counts_as_sent() -> None:
    queue = UploadQueue(at_once=1)
    queue.add(ONE, A)
    assert queue.begin(0.0) == (ONE, A)
    queue.overdue(ONE, A, now=11.0)
    queue.overdue(ONE, A, now=11.0)
    assert queue._sent[ONE] == 1
    queue.add(TWO, A)
    queue.add(ONE, B)
    assert queue.begin(11.0) == (ONE, B)
    queue.end(ONE, A, complete=True, now=30.0)  # does nothing
    assert queue.begin(30.0) is None


class Requests(RuleBasedStateMachine):
    """A queue beside two sets."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = UploadQueue(at_once=2, per_peer=2)
        self.waiting: set[tuple[bytes, bytes]] = set()
        self.sending: set[tuple[bytes, bytes]] = set()

    @rule(name=st.sampled_from((ONE, TWO, C)), peer=st.sampled_from((A, B)))
    def add(self, name: bytes, peer: bytes) -> None:
        request = (name, peer)
        few = sum(each[1] == peer for each in self.waiting) < 2
        expected = few and request not in self.waiting | self.sending
        assert self.queue.add(name, peer) == expected
        if expected:
            self.waiting.add(request)

    @rule()
    def begin(self) -> None:
        request = self.queue.begin(0.0)
        assert (request is None) == (len(self.sending) >= 2 or not self.waiting)
        if request is not None:
            self.waiting.remove(request)
            self.sending.add(request)

    @rule(name=st.sampled_from((ONE, TWO, C)), peer=st.sampled_from((A, B)), complete=st.booleans())
    def end(self, name: bytes, peer: bytes, complete: bool) -> None:
        self.queue.end(name, peer, complete=complete, now=0.0)
        self.waiting.discard((name, peer))
        self.sending.discard((name, peer))

    @rule(name=st.sampled_from((ONE, TWO, C)), peer=st.sampled_from((A, B)))
    def overdue(self, name: bytes, peer: bytes) -> None:
        self.queue.overdue(name, peer, now=0.0)
        self.sending.discard((name, peer))

    @invariant()
    def counts_are_right(self) -> None:
        assert set(self.queue._waiting) == self.waiting
        assert all(count >= 0 for counts in (self.queue._sent, self.queue._sent_to) for count in counts.values())
        assert +self.queue._by_peer == {
            peer: count for peer in (A, B) if (count := sum(each[1] == peer for each in self.waiting))
        }


TestRequests = Requests.TestCase
