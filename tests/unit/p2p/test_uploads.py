"""Which waiting request is answered next."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from psyche_core.p2p.uploads import UploadQueue

A, B, C = (bytes([letter]) * 32 for letter in b"abc")
ONE, TWO = b"1" * 32, b"2" * 32


def test_a_result_sent_less_often_comes_first_then_a_peer_that_got_less_then_who_waits_longest() -> None:
    queue = UploadQueue(at_once=1)
    for name, peer in ((ONE, A), (ONE, B), (TWO, A), (TWO, C)):
        assert queue.add(name, peer)
    answered = []
    while (request := queue.begin()) is not None:
        answered.append(request)
        assert queue.begin() is None, "one at once"
        queue.end(*request, complete=True)
    assert answered == [(ONE, A), (TWO, C), (ONE, B), (TWO, A)]


def test_of_small_results_more_are_sent_at_once() -> None:
    queue = UploadQueue(per_peer=20)
    for number in range(20):
        assert queue.add(bytes([number]), A)
    queue.expect_size(22_000_000)
    assert len([request for _ in range(20) if (request := queue.begin()) is not None]) == 2
    queue.expect_size(54_000)
    assert len([request for _ in range(20) if (request := queue.begin()) is not None]) == 14, "16 are being sent"


def test_what_was_withdrawn_is_not_answered_and_does_not_count_as_sent() -> None:
    queue = UploadQueue(at_once=1)
    queue.add(ONE, A)
    assert queue.begin() == (ONE, A)
    queue.add(TWO, B)
    queue.add(ONE, B)
    queue.add(ONE, C)
    queue.end(ONE, A, complete=False)
    queue.end(TWO, B, complete=False)
    queue.end(TWO, B, complete=False)  # a second time does nothing
    assert queue.begin() == (ONE, B)
    queue.end(ONE, B, complete=True)
    queue.add(TWO, B)
    queue.add(TWO, A)
    assert queue.begin() == (TWO, A), "what was withdrawn there does not count as sent to it"


def test_a_peer_s_requests_are_limited_and_asked_once() -> None:
    queue = UploadQueue(at_once=1, per_peer=2)
    assert queue.add(ONE, A)
    assert not queue.add(ONE, A)
    assert queue.add(TWO, A)
    assert not queue.add(b"3" * 32, A)
    assert queue.add(b"3" * 32, B), "others are not held up by it"
    assert queue.begin() == (ONE, A)
    assert not queue.add(ONE, A), "it is being answered"
    assert queue.add(b"3" * 32, A)


def test_a_result_that_has_expired_is_not_remembered() -> None:
    queue = UploadQueue()
    queue.add(ONE, A)
    queue.begin()
    queue.end(ONE, A, complete=True)
    queue.forget_result(ONE)
    queue.forget_result(TWO)
    assert not queue._sent


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
        request = self.queue.begin()
        assert (request is None) == (len(self.sending) >= 2 or not self.waiting)
        if request is not None:
            self.waiting.remove(request)
            self.sending.add(request)

    @rule(name=st.sampled_from((ONE, TWO, C)), peer=st.sampled_from((A, B)), complete=st.booleans())
    def end(self, name: bytes, peer: bytes, complete: bool) -> None:
        self.queue.end(name, peer, complete=complete)
        self.waiting.discard((name, peer))
        self.sending.discard((name, peer))

    @invariant()
    def counts_are_right(self) -> None:
        assert set(self.queue._waiting) == self.waiting
        assert all(count >= 0 for counts in (self.queue._sent, self.queue._sent_to) for count in counts.values())
        assert +self.queue._by_peer == {
            peer: count for peer in (A, B) if (count := sum(each[1] == peer for each in self.waiting))
        }


TestRequests = Requests.TestCase
