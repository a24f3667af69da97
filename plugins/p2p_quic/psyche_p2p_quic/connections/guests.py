"""Which members we keep a connection with where not all are neighbours, and which others may stay for a while. Pure.

A member connects to its neighbours (`psyche_core.p2p.overlay`), and accepts them always. Another member comes as a guest, to
fetch pieces of the model or of a share, or because it knows other members than we do. We visit others for the same.

Guests and visits have a number of places together, so that neighbours and these are never more than a member should have. Some
of the places are kept for visits: guests may have them as long as nobody is visited, and then the guest that has been here
longest leaves at once. So neither can keep the other out. A guest's connection ends when nothing has been transferred for a
while. When all places are taken, a guest whose turn is over makes room for another. How long a turn lasts is drawn for each
guest, so nobody can know when a place becomes free. Of those that want a place, who has been here least lately comes first
(`guest_order`). So a few members cannot hold the places of all others for ever, nor pass them on among themselves. Nobody gets a
place before its hello (`arrivals`). `mesh` dials and closes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from psyche_p2p_quic.connections.guest_order import GuestOrder

_SHORTEST, _LONGEST = 0.5, 1.5
"""Of what a turn lasts on average."""


class Guests:
    """Whom we connect to, and who is here beside them.

    most: members at once that are no neighbours: guests, and those that we visit. most_visits: members that we visit at once;
    fewer than `most`, or none. turn_seconds: how long a guest may stay on average though another one wants its place.
    idle_seconds: after so long without a transfer a guest's connection ends. draw: for how long each turn lasts. neighbours: of
    the present graph; None if all members are neighbours. Raises ValueError for more visits than places.
    """

    def __init__(
        self, *, most: int, most_visits: int, turn_seconds: float, idle_seconds: float, draw: random.Random | None = None
    ) -> None:
        if not 0 <= most_visits <= most:
            message = f"visits take places of guests, so there can be no more than {most} at once, got {most_visits}"
            raise ValueError(message)

        self.neighbours: frozenset[bytes] | None = None
        self._most = most
        self._most_visits = most_visits
        self._turn_seconds = turn_seconds
        self._idle_seconds = idle_seconds
        self._draw = draw or random.Random()
        self._order = GuestOrder()
        self._visits: Counter[bytes] = Counter()
        self._since: dict[bytes, float] = {}
        self._until: dict[bytes, float] = {}
        self._active: dict[bytes, tuple[int, float]] = {}
        self._admitted: set[bytes] = set()

    def seeks(self, peer: bytes) -> bool:
        """Return whether we dial this member: a neighbour, or one that we visit."""
        return self.neighbours is None or peer in self.neighbours or peer in self._visits

    def beside(self, peer: bytes) -> bool:
        """Return whether a member is no neighbour."""
        return self.neighbours is not None and peer not in self.neighbours

    def visits(self, peer: bytes) -> bool:
        """Return whether we visit this member."""
        return peer in self._visits

    def begin_visit(self, peer: bytes) -> tuple[bool, bytes | None]:
        """Note that a transfer needs this member. Return whether we may visit it, and the guest that has to leave for it.

        We may not if we visit too many others.
        """
        if peer in self._visits:
            self._visits[peer] += 1
            return True, None

        if len(self._visits) >= self._most_visits:
            return False, None

        taken = self._taken()
        if peer in taken or len(taken) < self._most:
            self._visits[peer] = 1
            return True, None

        longest = self._longest()
        if longest is None:
            return False, None

        self._leave(longest)
        self._visits[peer] = 1
        return True, longest

    def end_visit(self, peer: bytes) -> None:
        """Note that one transfer does not need this member any more."""
        self._visits[peer] -= 1
        if self._visits[peer] <= 0:
            del self._visits[peer]

    def present(self, peers: Collection[bytes], now: float) -> None:
        """Note who is connected now, without those whose connection is being closed."""
        self._order.note(self._since, now)
        near = self.neighbours
        guests = [] if near is None else [peer for peer in peers if peer not in near]
        self._since = {peer: self._since.get(peer, now) for peer in guests}
        self._until = {peer: self._until[peer] if peer in self._until else now + self._turn() for peer in guests}
        self._active = {peer: self._active.get(peer, (0, now)) for peer in guests}

    def admit(self, peer: bytes, now: float) -> tuple[bool, bytes | None]:
        """Return whether a member that has said hello may come in, and the guest that has to leave for it, None if nobody has to.

        It has its place until `has_come`, and longer if `present` names it until then.
        """
        near = self.neighbours
        if near is None or peer in near or peer in self._admitted:
            return True, None

        self._order.note(self._since, now)
        if len(self._admitted - near) >= max(1, self._most - self._most_visits):
            self._order.refused(peer)  # who never gets further than this must not keep us from visits
            return False, None

        taken = self._taken()
        leaves = None
        if peer not in taken:
            over = [guest for guest in self._replaceable() if now >= self._until[guest]]
            places, before = self._most - len(taken) + len(over), self._order.before(peer)
            if places <= len(before):
                self._order.refused(peer, for_others=before if places > 0 else ())
                return False, None

            if len(taken) >= self._most:
                leaves = min(over, key=self._until.__getitem__)
                self._leave(leaves)
        self._order.admitted(peer)
        self._admitted.add(peer)
        return True, leaves

    def has_come(self, peer: bytes) -> None:
        """Note that a member that was admitted is present now, or will not be."""
        self._admitted.discard(peer)

    def surplus(self, busy: Collection[bytes]) -> list[bytes]:
        """Return the guests that have to leave because there are too many, which happens when neighbours change.

        busy: those with a transfer, which stay rather than others.
        """
        if self.neighbours is None:
            return []

        over = len(self._taken()) - self._most
        leaving = sorted(self._replaceable(), key=lambda guest: (guest in busy, self._since[guest]))[: max(0, over)]
        for guest in leaving:
            self._leave(guest)
        return leaving

    def idle(self, transfers: Mapping[bytes, tuple[bool, int]], now: float) -> list[bytes]:
        """Return the guests whose connection ends now.

        transfers: of each connected peer whether something is transferred, and how many transfers there were.
        """
        ended = []
        for guest in self._since:
            busy, count = transfers.get(guest, (False, 0))
            known, at = self._active[guest]
            if busy or count != known or guest in self._visits:
                self._active[guest] = (count, now)
            elif now - at >= self._idle_seconds:
                ended.append(guest)
        return ended

    def _taken(self) -> set[bytes]:
        """Who has a place: no neighbours."""
        return {*self._since, *self._visits, *self._admitted} - (self.neighbours or frozenset())

    def _replaceable(self) -> Iterator[bytes]:
        """Guests that may have to leave: not those that connect again, whose new connection needs the place."""
        return (guest for guest in self._since if guest not in self._visits and guest not in self._admitted)

    def _longest(self) -> bytes | None:
        return min(self._replaceable(), key=self._since.__getitem__, default=None)

    def _leave(self, guest: bytes) -> None:
        del self._since[guest], self._until[guest], self._active[guest]

    def _turn(self) -> float:
        """Draw how many seconds a turn lasts."""
        return self._turn_seconds * self._draw.uniform(_SHORTEST, _LONGEST)
