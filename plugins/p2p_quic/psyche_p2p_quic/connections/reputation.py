"""Records how peers behaved: until when each is refused, and how many wrong blobs it served. Pure; the caller passes the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet


class Reputation:
    """Offences of peers. penalty_seconds: how long an offender is refused.

    false_blobs: number of wrong blobs that is an offence.
    """

    def __init__(self, *, penalty_seconds: float, false_blobs: int) -> None:
        self._penalty_seconds = penalty_seconds
        self._most_false = false_blobs
        self._refused_until: dict[bytes, float] = {}
        self._false: Counter[bytes] = Counter()
        self._doubted: set[bytes] = set()

    @property
    def doubted(self) -> AbstractSet[bytes]:
        """Peers that served a wrong blob since they became members; they are asked last."""
        return self._doubted

    def offended(self, peer: bytes, *, now: float) -> None:
        """Note that the peer broke a rule."""
        self._refused_until[peer] = now + self._penalty_seconds

    def served_false(self, peer: bytes, *, now: float) -> bool:
        """Note that the peer served bytes that do not match their hash; return whether that made it an offender."""
        self._doubted.add(peer)
        self._false[peer] += 1
        if self._false[peer] < self._most_false:
            return False

        del self._false[peer]
        self.offended(peer, now=now)
        return True

    def refused_for(self, peer: bytes, *, now: float) -> float:
        """Return the seconds for which the peer is still refused, 0 when it is not refused."""
        return max(0.0, self._refused_until.get(peer, 0.0) - now)

    def keep_only(self, peers: frozenset[bytes]) -> None:
        """Forget peers that are no longer members."""
        self._refused_until = {peer: until for peer, until in self._refused_until.items() if peer in peers}
        self._doubted &= peers
        self._false = Counter({peer: count for peer, count in self._false.items() if peer in peers})
