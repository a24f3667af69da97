"""Who of those that want a guest's place comes first: those that have been guests least lately. Pure.

Members that work together could take turns in all places of another member, so that one of them is always there first when a
place becomes free. So it is remembered for how long each has been a guest; half of that is forgotten in two minutes. Who was
refused because there was no place wants one for a while, and those that have been here longer lately let it pass. Among those
that have been here about as long, who has wanted a place for much longer comes first. Who does not come for a place that others
had to leave to it has kept it free for itself, so this counts as if it had been here. `guests` has the places. The caller passes
times, which never go back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

WANTS_SECONDS = 15.0
"""A member that was refused wants a place for so long. An honest one tries again much sooner."""

FORGOTTEN_SECONDS = 120.0
"""After this time half of what somebody has been here counts."""

STEP_SECONDS = 10.0
"""Differences below this do not matter: of how long two have been here, and of how long they have wanted to be."""

MOST_REMEMBERED = 1024
_LEAST_SECONDS = 0.1


@dataclass(slots=True)
class _Wish:
    """since: when a member was refused first. asked: when last. in_the_way: whether another had to leave a place to it."""

    since: float
    asked: float
    in_the_way: bool = False


class GuestOrder:
    """Who has been here lately, and who wants to be."""

    def __init__(self) -> None:
        self._now = 0.0
        self._stayed: dict[bytes, float] = {}
        self._wants: dict[bytes, _Wish] = {}

    def note(self, guests: Collection[bytes], now: float) -> None:
        """Note who has been a guest since the last call."""
        passed, self._now = now - self._now, now
        if passed <= 0.0:
            return

        kept = 0.5 ** (passed / FORGOTTEN_SECONDS)
        stayed = {peer: seconds * kept for peer, seconds in self._stayed.items()}
        for guest in guests:
            self._wants.pop(guest, None)
            stayed[guest] = stayed.get(guest, 0.0) + passed
        for peer in [peer for peer, wish in self._wants.items() if now - wish.asked > WANTS_SECONDS]:
            if self._wants.pop(peer).in_the_way:
                stayed[peer] = stayed.get(peer, 0.0) + WANTS_SECONDS
        known = sorted(stayed, key=stayed.__getitem__)[-MOST_REMEMBERED:]
        self._stayed = {peer: stayed[peer] for peer in known if stayed[peer] >= _LEAST_SECONDS or peer in guests}

    def before(self, peer: bytes) -> list[bytes]:
        """Return the others that want a place and come before this member."""
        steps, known = self._steps(peer), self._wants.get(peer)
        since = self._now if known is None else known.since

        def comes_first(other: bytes, wish: _Wish) -> bool:
            theirs = self._steps(other)
            return theirs < steps or (theirs == steps and wish.since < since - STEP_SECONDS)

        return [other for other, wish in self._wants.items() if other != peer and comes_first(other, wish)]

    def refused(self, peer: bytes, *, for_others: Collection[bytes] = ()) -> None:
        """Note that there was no place for a member, so it wants one. for_others: those to which it has to leave a place."""
        for other in for_others:
            self._wants[other].in_the_way = True
        if peer in self._wants:
            self._wants[peer].asked = self._now
        elif len(self._wants) < MOST_REMEMBERED:
            self._wants[peer] = _Wish(self._now, self._now)

    def admitted(self, peer: bytes) -> None:
        """Note that a member has a place."""
        self._wants.pop(peer, None)

    def _steps(self, peer: bytes) -> int:
        return int(self._stayed.get(peer, 0.0) / STEP_SECONDS)
