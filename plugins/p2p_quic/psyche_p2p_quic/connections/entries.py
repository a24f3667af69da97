"""How often each peer is let in, and how often we try one again that had no place for us. The caller passes times.

Every connection of a peer costs an entry, however it ends. One that is refused because all places for guests are taken costs
none, or who waits for a place would soon be let in seldom; but refusals are limited too.
"""

from __future__ import annotations

from psyche_core.rate_limit import TokenBucket
from psyche_p2p_quic.connections.per_peer import Remembered
from psyche_p2p_quic.settings import QuicSettings


class Entries:
    """Entries and refusals of each peer.

    settings: `sessions_per_minute` and `session_burst` entries of one peer, `refusals_per_minute`, half of these at once; after a
    peer had no place for us, it is not dialled for half of `retry_most_seconds`.
    """

    def __init__(self, settings: QuicSettings) -> None:
        per_second, burst = settings.sessions_per_minute / 60, settings.session_burst
        refusals, again = settings.refusals_per_minute, settings.retry_most_seconds / 2
        self._entries = Remembered(lambda: TokenBucket(per_second, burst=burst))
        self._refusals = Remembered(lambda: TokenBucket(refusals / 60, burst=max(1.0, refusals / 2)))
        self._tries = Remembered(lambda: TokenBucket(1 / again, burst=1.0))

    def wait(self, peer: bytes, now: float) -> float:
        """Return the seconds until a peer is let in again."""
        return max(self._entries.of(peer).wait(now), self._refusals.of(peer).wait(now))

    def wait_to_dial(self, peer: bytes, now: float) -> float:
        """Return the seconds until we dial a peer again."""
        return max(self._entries.of(peer).wait(now), self._tries.of(peer).wait(now))

    def take(self, peer: bytes, now: float) -> None:
        """Note a connection with a peer."""
        self._entries.of(peer).take(now)

    def had_no_place(self, peer: bytes, now: float) -> None:
        """Note that there was no place for a peer whose entry was counted: this costs a refusal in place of it."""
        self._entries.of(peer).give_back(1.0)
        self._refusals.of(peer).take(now)

    def was_refused(self, peer: bytes, now: float) -> None:
        """Note that a peer had no place for us."""
        self._tries.of(peer).take(now)
