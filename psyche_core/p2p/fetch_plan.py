"""Which peer to ask for a blob next, and when to give up.

Sources are asked in the given order, then the other members. A member that is unreachable is asked when it becomes reachable. A
peer whose connection broke may be asked again, a few times. A peer that did not have the blob is asked again only when the caller
requests it, because it may have received the blob since. Peers that sent wrong bytes before come last. The transport waits,
hashes and sends, and reports each answer here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum, auto

from psyche_core.errors import BlobNotFound, BlobRejected

MAX_LOST = 3
"""Number of unanswered requests after which a peer counts as not having the blob."""


class Answer(Enum):
    """How a request to a peer ended without the blob."""

    ABSENT = auto()
    TOO_LARGE = auto()
    FALSE = auto()
    LOST = auto()
    RELEASED = auto()


class Outcome(Enum):
    """State of the whole fetch: still open, no member has the blob, or the answers of members that had it were rejected."""

    OPEN = auto()
    NOT_FOUND = auto()
    REJECTED = auto()


class FetchPlan:
    """The state of one fetch. sources: peers to ask first, in this order; other members are asked after them."""

    def __init__(self, sources: Iterable[bytes] = ()) -> None:
        self._order: dict[bytes, None] = dict.fromkeys(sources)
        self._busy: set[bytes] = set()
        self._answers: dict[bytes, Answer] = {}
        self._lost: dict[bytes, int] = {}
        self._released: dict[bytes, int] = {}

    @property
    def sources(self) -> tuple[bytes, ...]:
        """The peers to ask first, in their order."""
        return tuple(self._order)

    def has_answered(self, peer: bytes) -> bool:
        """Whether a peer is not asked any more for now, because of its answer."""
        return peer in self._answers

    def add(self, sources: Iterable[bytes]) -> None:
        """Add further sources, for another caller that wants the same blob."""
        self._order.update(dict.fromkeys(sources))

    def begin(
        self,
        *,
        members: Iterable[bytes],
        reachable: Collection[bytes],
        doubted: Collection[bytes] = (),
        slow: Collection[bytes] = (),
        load: Mapping[bytes, float] | None = None,
    ) -> bytes | None:
        """Choose the next peer to ask, mark it as being asked, and return it; None if no reachable member is left to ask.

        members, reachable: members to choose from, and those of them that can be asked now. doubted: members to ask after all
        others. Peers that failed to answer or were released are asked after peers that were not. slow: peers reached through a
        relay; among the sources they are asked last, and also among the members that are not sources. load: what each peer has
        sent us already; among peers that are equal in all this, the one with least is asked first, and without it the given
        order counts.
        """
        members = tuple(members)
        allowed = frozenset(members)
        order: Iterable[bytes] = (*self._order, *members)
        if doubted or slow or load or self._lost or self._released:

            def rank(peer: bytes) -> tuple[bool, int, bool, bool, float]:
                failures = self._lost.get(peer, 0) + self._released.get(peer, 0)
                return peer in doubted, failures, peer not in self._order, peer in slow, load.get(peer, 0) if load else 0

            order = sorted(order, key=rank)
        for peer in order:
            if peer in allowed and peer in reachable and peer not in self._busy and peer not in self._answers:
                self._busy.add(peer)
                return peer

        return None

    def settle(self, peer: bytes, answer: Answer) -> None:
        """Record how a request to a peer ended."""
        self._busy.discard(peer)
        if answer is not Answer.LOST:
            self._answers[peer] = answer
            return

        self._lost[peer] = self._lost.get(peer, 0) + 1
        if self._lost[peer] >= MAX_LOST:
            self._answers[peer] = Answer.ABSENT

    def release(self, peer: bytes) -> None:
        """Stop waiting for a peer that may still answer. `ask_again` allows to ask it again."""
        self._busy.discard(peer)
        self._answers[peer] = Answer.RELEASED
        self._released[peer] = self._released.get(peer, 0) + 1

    def ask_again(self) -> bool:
        """Allow peers that did not have the blob to be asked again: they may have it now. Returns whether there are any."""
        absent = [
            peer
            for peer, answer in self._answers.items()
            if answer is Answer.RELEASED or (answer is Answer.ABSENT and self._lost.get(peer, 0) < MAX_LOST)
        ]
        for peer in absent:
            del self._answers[peer]
        return bool(absent)

    def raise_if_over(self, blob_hash: bytes, members: Collection[bytes]) -> None:
        """Raise BlobNotFound or BlobRejected once no member is left to ask."""
        match self.outcome(members):
            case Outcome.NOT_FOUND:
                message = f"none of {len(members)} members has blob {blob_hash.hex()}"
                raise BlobNotFound(message)
            case Outcome.REJECTED:
                message = f"every answer for blob {blob_hash.hex()} was larger than allowed or did not match its hash"
                raise BlobRejected(message)

    def outcome(self, members: Iterable[bytes]) -> Outcome:
        """Return the state of the fetch. It is over when all members were asked and have answered."""
        open_still = (None, Answer.RELEASED)
        if self._busy or any(self._answers.get(peer) in open_still for peer in members):
            return Outcome.OPEN

        refused = any(answer in (Answer.TOO_LARGE, Answer.FALSE) for answer in self._answers.values())
        return Outcome.REJECTED if refused else Outcome.NOT_FOUND
