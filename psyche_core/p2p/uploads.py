"""Which of the waiting requests for results a member answers next.

A member sends few results at once, because each of them can be passed on only when it is complete: of two that are sent one
after the other the second arrives no later than both would together, and the first much earlier. Requests wait meanwhile, and
those that another holder answers are withdrawn. The result that we have sent least often comes first, so that all results get
away from their authors soon; then the peer to which we have sent least, so that no neighbour is without anything for long; then
the longest waiting request.

A peer that takes places and no results comes after all others: one that withdraws its requests late, that takes a result for
longer than a turn, or a small one slowly. What counts are the seconds for which it has held a place in vain, because honest peers
withdraw requests too, soon after their turns have begun. It is forgiven by half in each minute. The caller passes times.
"""

from __future__ import annotations

import math
from collections import Counter

from psyche_core.p2p.downloads import AT_ONCE, at_once_of

MAX_WAITING_PER_PEER = 16
"""Twice what an honest peer lets wait (`downloads.PER_PEER`), because some of what it withdrew may be on its way."""

WASTED_SECONDS = 10.0
"""A peer comes after another that has wasted so many seconds less, in whole multiples of this."""

FORGIVEN_SECONDS = 60.0
"""After this time half of what a peer has wasted counts."""

SLOWEST_BYTES = 512 * 1024
"""Bytes a second at which a result must be taken at least; beyond that and one second, the time of a complete turn is wasted."""

_FORGOTTEN_SECONDS = 0.01


class UploadQueue:
    """Requests by (result, peer).

    at_once: most requests that are answered at once. per_peer: most waiting requests of one peer; more are refused.
    """

    def __init__(self, *, at_once: int = AT_ONCE, per_peer: int = MAX_WAITING_PER_PEER) -> None:
        self._at_once = at_once
        self._per_peer = per_peer
        self._longest = math.inf
        self._waiting: dict[tuple[bytes, bytes], None] = {}
        self._by_peer: Counter[bytes] = Counter()
        self._sending: dict[tuple[bytes, bytes], float] = {}
        self._sent: Counter[bytes] = Counter()
        self._sent_to: Counter[bytes] = Counter()
        self._wasted: dict[bytes, tuple[float, float]] = {}

    def add(self, name: bytes, peer: bytes) -> bool:
        """Let a request wait. Returns False if the peer has too many or has asked for this already."""
        request = (name, peer)
        if request in self._waiting or request in self._sending or self._by_peer[peer] >= self._per_peer:
            return False

        self._waiting[request] = None
        self._by_peer[peer] += 1
        return True

    def expect_size(self, size: int) -> None:
        """Note how large results are, in bytes: of small ones more are sent at once, see `at_once_of`."""
        self._at_once = at_once_of(size)
        self._longest = 1.0 + size / SLOWEST_BYTES

    def begin(self, now: float) -> tuple[bytes, bytes] | None:
        """Return the next request to answer, as (result, peer), and count it as being answered; None if none may begin now.

        now: seconds of a clock that does not go back.
        """
        if len(self._sending) >= self._at_once or not self._waiting:
            return None

        behind = {peer: int(self._wasted_by(peer, now) / WASTED_SECONDS) for peer in self._wasted}
        name, peer = min(  # min gives the first of equals
            self._waiting, key=lambda request: (behind.get(request[1], 0), self._sent[request[0]], self._sent_to[request[1]])
        )
        self._leave(name, peer)
        self._sending[name, peer] = now
        self._sent[name] += 1
        self._sent_to[peer] += 1
        return name, peer

    def end(self, name: bytes, peer: bytes, *, complete: bool, now: float) -> None:
        """Note that a request was answered, or withdrawn (not complete). Does nothing if it is unknown."""
        request = (name, peer)
        if request in self._sending:
            held = now - self._sending.pop(request)
            if complete:
                self._waste(peer, held - self._longest, now)
            else:
                self._sent[name] = max(0, self._sent[name] - 1)  # it may have been forgotten meanwhile
                self._sent_to[peer] -= 1
                self._waste(peer, held, now)
        elif request in self._waiting:
            self._leave(name, peer)

    def overdue(self, name: bytes, peer: bytes, *, now: float) -> None:
        """End the turn of a request that is answered for too long; its answer goes on beside others'."""
        began = self._sending.pop((name, peer), None)
        if began is not None:
            self._waste(peer, now - began, now)

    def forget_result(self, name: bytes) -> None:
        """Forget how often a result was sent, because it has expired; requests for it are withdrawn with `end`."""
        del self._sent[name]

    def _waste(self, peer: bytes, seconds: float, now: float) -> None:
        if seconds > 0:
            self._wasted[peer] = self._wasted_by(peer, now) + seconds, now
        for other in [other for other in self._wasted if self._wasted_by(other, now) < _FORGOTTEN_SECONDS]:
            del self._wasted[other]

    def _wasted_by(self, peer: bytes, now: float) -> float:
        """Return the seconds that a peer has wasted, without what is forgiven."""
        seconds, since = self._wasted.get(peer, (0.0, now))
        return float(seconds * 0.5 ** ((now - since) / FORGIVEN_SECONDS))

    def _leave(self, name: bytes, peer: bytes) -> None:
        del self._waiting[name, peer]
        self._by_peer[peer] -= 1
        if not self._by_peer[peer]:
            del self._by_peer[peer]
