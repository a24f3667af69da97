"""Who announced what: the same as plain sets, and bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from psyche_core.p2p.holders import HolderBook

PEERS = [bytes([letter]) * 32 for letter in b"abc"]
BLOBS = [bytes([digit]) * 16 for digit in range(6)]
MOST = 3

peers, blobs = st.sampled_from(PEERS), st.sampled_from(BLOBS)


class Announcements(RuleBasedStateMachine):
    """A book beside lists of the newest announcements of each peer."""

    def __init__(self) -> None:
        super().__init__()
        self.book = HolderBook(max_prefixes=MOST)
        self.known: dict[bytes, list[bytes]] = {peer: [] for peer in PEERS}

    @rule(peer=peers, named=st.lists(blobs, max_size=5))
    def note(self, peer: bytes, named: list[bytes]) -> None:
        self.book.note(peer, named)
        for blob in named:
            if blob in self.known[peer]:
                self.known[peer].remove(blob)
            self.known[peer].append(blob)
            del self.known[peer][:-MOST]

    @rule(peer=peers, blob=blobs)
    def withdraw(self, peer: bytes, blob: bytes) -> None:
        self.book.withdraw(peer, blob)
        if blob in self.known[peer]:
            self.known[peer].remove(blob)

    @rule(peer=peers)
    def forget_peer(self, peer: bytes) -> None:
        self.book.forget_peer(peer)
        self.known[peer] = []

    @rule(blob=blobs)
    def forget_blob(self, blob: bytes) -> None:
        self.book.forget_blob(blob)
        for named in self.known.values():
            if blob in named:
                named.remove(blob)

    @invariant()
    def holders_are_those_that_said_so(self) -> None:
        for blob in BLOBS:
            holders = {peer for peer, named in self.known.items() if blob in named}
            assert set(self.book.of(blob)) == holders
            assert self.book.count(blob) == len(self.book.of(blob)) == len(holders)

    @invariant()
    def nothing_is_kept_of_nobody(self) -> None:
        assert set(self.book._by_peer) == {peer for peer, named in self.known.items() if named}
        assert set(self.book._by_prefix) == {blob for named in self.known.values() for blob in named}


TestAnnouncements = Announcements.TestCase


@given(st.permutations(PEERS))
def test_who_announced_first_is_first(order: list[bytes]) -> None:
    book = HolderBook()
    for peer in order:
        book.note(peer, [BLOBS[0]])
    book.note(order[0], [BLOBS[0]])
    assert book.of(BLOBS[0]) == tuple(order)
