"""Which members we keep a connection with where not all are neighbours, and which others may stay for a while. Pure.

A member connects to its neighbours (`psyche_core.p2p.overlay`), and accepts them always. Another member comes as a guest, to
fetch pieces of the model or of a share, or because it knows other members than we do. We visit others for the same. Guests are
limited in number, and their connection ends when nothing has been transferred for a while. When all places are taken, the guest
that has been here longest makes room, if it has had some time; so a few members cannot hold the places of all others for ever.
`mesh` dials and closes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping


class Guests:
    """Whom we connect to, and who is here beside them.

    most: guests at once. most_visits: members that we visit at once. turn_seconds: how long a guest may stay though another one
    wants its place. idle_seconds: after so long without a transfer a guest's connection ends. neighbours: of the present graph;
    None if all members are neighbours.
    """

    def __init__(self, *, most: int, most_visits: int, turn_seconds: float, idle_seconds: float) -> None:
        self.neighbours: frozenset[bytes] | None = None
        self._most = most
        self._most_visits = most_visits
        self._turn_seconds = turn_seconds
        self._idle_seconds = idle_seconds
        self._visits: Counter[bytes] = Counter()
        self._since: dict[bytes, float] = {}
        self._active: dict[bytes, tuple[int, float]] = {}

    def seeks(self, peer: bytes) -> bool:
        """Return whether we dial this member: a neighbour, or one that we visit."""
        return self.neighbours is None or peer in self.neighbours or peer in self._visits

    def visits(self, peer: bytes) -> bool:
        """Return whether we visit this member."""
        return peer in self._visits

    def begin_visit(self, peer: bytes) -> bool:
        """Note that a transfer needs this member; False if we visit too many others."""
        if peer not in self._visits and len(self._visits) >= self._most_visits:
            return False

        self._visits[peer] += 1
        return True

    def end_visit(self, peer: bytes) -> None:
        """Note that one transfer does not need this member any more."""
        self._visits[peer] -= 1
        if self._visits[peer] <= 0:
            del self._visits[peer]

    def present(self, peers: Collection[bytes], now: float) -> None:
        """Note who is connected now."""
        near = self.neighbours
        guests = [] if near is None else [peer for peer in peers if peer not in near]
        self._since = {peer: self._since.get(peer, now) for peer in guests}
        self._active = {peer: self._active.get(peer, (0, now)) for peer in guests}

    def admit(self, peer: bytes, arriving: Collection[bytes], now: float) -> tuple[bool, bytes | None]:
        """Return whether a member may come in, and the guest that has to leave for it, None if nobody has to.

        arriving: members whose connection is being made.
        """
        if self.seeks(peer) or peer in self._since:
            return True, None

        waiting = [other for other in arriving if other != peer and not self.seeks(other) and other not in self._since]
        here = [guest for guest in self._since if guest not in self._visits]
        if len(here) + len(waiting) < self._most:
            return True, None

        longest = min(here, key=self._since.__getitem__, default=None)
        if longest is None or now - self._since[longest] < self._turn_seconds:
            return False, None

        return True, longest

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
