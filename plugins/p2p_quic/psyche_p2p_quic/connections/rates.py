"""How often a peer may do something, and what is kept for each peer. Pure; the caller passes the time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

REMEMBERED_PEERS = 4096

_Kept = TypeVar("_Kept")


class Remembered(Generic[_Kept]):
    """One value for each peer. It outlasts membership, so that who leaves and comes back does not begin anew.

    What is remembered is bounded; the least recently used value is forgotten first.
    """

    def __init__(self, make: Callable[[], _Kept]) -> None:
        self._make = make
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()

    def of(self, peer: bytes) -> _Kept:
        """The peer's value, made when it is first asked for."""
        if peer not in self._kept:
            self._kept[peer] = self._make()
        self._kept.move_to_end(peer)
        if len(self._kept) > REMEMBERED_PEERS:
            self._kept.popitem(last=False)
        return self._kept[peer]


class TokenBucket:
    """`burst` tokens at once, and `per_second` more each second."""

    def __init__(self, *, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = burst
        self._at: float | None = None

    def take(self, now: float, count: float = 1.0) -> float:
        """Take tokens, also those that are yet to come. Returns the seconds until they have come."""
        self._fill(now)
        self._left -= count
        return max(0.0, -self._left / self._per_second)

    def wait(self, now: float) -> float:
        """Seconds until there is a token."""
        self._fill(now)
        return max(0.0, (1.0 - self._left) / self._per_second)

    def give_back(self, count: float) -> None:
        """Return tokens that were not used."""
        self._left += count

    def _fill(self, now: float) -> None:
        since = 0.0 if self._at is None else max(0.0, now - self._at)
        self._left = min(self._burst, self._left + since * self._per_second)
        self._at = now
