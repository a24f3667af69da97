"""Which of the waiting requests for results a member answers next.

A member sends few results at once, because each of them can be passed on only when it is complete: of two that are sent one
after the other the second arrives no later than both would together, and the first much earlier. Requests wait meanwhile, and
those that another holder answers are withdrawn. The result that we have sent least often comes first, so that all results get
away from their authors soon; then the peer to which we have sent least, so that no neighbour is without anything for long; then
the longest waiting request.
"""

from __future__ import annotations

from collections import Counter

from psyche_core.p2p.downloads import AT_ONCE, at_once_of

MAX_WAITING_PER_PEER = 16
"""Twice what an honest peer lets wait (`downloads.PER_PEER`), because some of what it withdrew may be on its way."""


class UploadQueue:
    """Requests by (result, peer).

    at_once: most requests that are answered at once. per_peer: most waiting requests of one peer; more are refused.
    """

    def __init__(self, *, at_once: int = AT_ONCE, per_peer: int = MAX_WAITING_PER_PEER) -> None:
        self._at_once = at_once
        self._per_peer = per_peer
        self._waiting: dict[tuple[bytes, bytes], None] = {}
        self._by_peer: Counter[bytes] = Counter()
        self._sending: set[tuple[bytes, bytes]] = set()
        self._sent: Counter[bytes] = Counter()
        self._sent_to: Counter[bytes] = Counter()

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

    def begin(self) -> tuple[bytes, bytes] | None:
        """Return the next request to answer, as (result, peer), and count it as being answered; None if none may begin now."""
        if len(self._sending) >= self._at_once or not self._waiting:
            return None

        name, peer = min(self._waiting, key=self._rank)  # min gives the first of equals
        self._leave(name, peer)
        self._sending.add((name, peer))
        self._sent[name] += 1
        self._sent_to[peer] += 1
        return name, peer

    def end(self, name: bytes, peer: bytes, *, complete: bool) -> None:
        """Note that a request was answered, or withdrawn (not complete). Does nothing if it is unknown."""
        request = (name, peer)
        if request in self._sending:
            self._sending.remove(request)
            if not complete:
                self._sent[name] -= 1
                self._sent_to[peer] -= 1
        elif request in self._waiting:
            self._leave(name, peer)

    def forget_result(self, name: bytes) -> None:
        """Forget how often a result was sent, because it has expired; requests for it are withdrawn with `end`."""
        del self._sent[name]

    def _rank(self, request: tuple[bytes, bytes]) -> tuple[int, int]:
        name, peer = request
        return self._sent[name], self._sent_to[peer]

    def _leave(self, name: bytes, peer: bytes) -> None:
        del self._waiting[name, peer]
        self._by_peer[peer] -= 1
        if not self._by_peer[peer]:
            del self._by_peer[peer]
