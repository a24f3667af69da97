"""Which peer to ask for a blob next, and when to give up.

Sources are asked in the order given, then the other members; a member that cannot be reached is asked once it can. A peer whose
connection broke may be asked again, a few times. A peer that did not have the blob is asked again only when the caller says so,
because it may have it by now. A peer that sent false bytes before comes last. Waiting, hashing and sending are done by the
transport, which reports each answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum, auto

MAX_LOST = 3
"""How often a peer may fail to answer before it counts as having answered no."""


class Answer(Enum):
    """How asking a peer ended without the blob."""

    ABSENT = auto()
    TOO_LARGE = auto()
    FALSE = auto()
    LOST = auto()
    RELEASED = auto()


class Outcome(Enum):
    """What is known of the whole fetch: nothing final, nobody has it, or who had it was refused."""

    OPEN = auto()
    NOT_FOUND = auto()
    REJECTED = auto()


class FetchPlan:
    """The state of one fetch. sources: peers in the order to ask them; members may be asked when all of these were."""

    def __init__(self, sources: Iterable[bytes] = ()) -> None:
        self._order: dict[bytes, None] = dict.fromkeys(sources)
        self._busy: set[bytes] = set()
        self._answers: dict[bytes, Answer] = {}
        self._lost: dict[bytes, int] = {}
        self._released: dict[bytes, int] = {}

    def add(self, sources: Iterable[bytes]) -> None:
        """Name further sources; somebody else wants the same blob."""
        self._order.update(dict.fromkeys(sources))

    def begin(self, *, members: Iterable[bytes], reachable: Collection[bytes], doubted: Collection[bytes] = ()) -> bytes | None:
        """The peer to ask now, counted as being asked; None when nobody unasked is both a member and reachable.

        doubted: members to ask after all others. Who was lost or released comes after those that were not.
        """
        members = tuple(members)
        allowed = frozenset(members)
        order: Iterable[bytes] = (*self._order, *members)
        if doubted or self._lost or self._released:
            order = sorted(order, key=lambda peer: (peer in doubted, self._lost.get(peer, 0) + self._released.get(peer, 0)))
        for peer in order:
            if peer in allowed and peer in reachable and peer not in self._busy and peer not in self._answers:
                self._busy.add(peer)
                return peer

        return None

    def settle(self, peer: bytes, answer: Answer) -> None:
        """Note how asking a peer ended."""
        self._busy.discard(peer)
        if answer is not Answer.LOST:
            self._answers[peer] = answer
            return

        self._lost[peer] = self._lost.get(peer, 0) + 1
        if self._lost[peer] >= MAX_LOST:
            self._answers[peer] = Answer.ABSENT

    def release(self, peer: bytes) -> None:
        """We ask a peer no longer although it may answer: it is asked again with those that had nothing."""
        self._busy.discard(peer)
        self._answers[peer] = Answer.RELEASED
        self._released[peer] = self._released.get(peer, 0) + 1

    def ask_again(self) -> bool:
        """Let those that had nothing be asked once more: they may have it by now. Whether there are any."""
        absent = [
            peer
            for peer, answer in self._answers.items()
            if answer is Answer.RELEASED or (answer is Answer.ABSENT and self._lost.get(peer, 0) < MAX_LOST)
        ]
        for peer in absent:
            del self._answers[peer]
        return bool(absent)

    def outcome(self, members: Iterable[bytes]) -> Outcome:
        """Whether it is over: every member was asked and has answered."""
        open_still = (None, Answer.RELEASED)
        if self._busy or any(self._answers.get(peer) in open_still for peer in members):
            return Outcome.OPEN

        refused = any(answer in (Answer.TOO_LARGE, Answer.FALSE) for answer in self._answers.values())
        return Outcome.REJECTED if refused else Outcome.NOT_FOUND
