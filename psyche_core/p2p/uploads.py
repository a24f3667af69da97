"""Which of the waiting requests for results a member answers next.

A member sends few results at once, because each of them can be passed on only when it is complete: of two that are sent one
after the other the second arrives no later than both would together, and the first much earlier. Of small results more are sent
at once, as long as all that are being sent are few bytes together. Requests wait meanwhile, and those that another holder answers
are withdrawn.

Each peer gets its share of turns: the next is for the peer that has had the shortest turns together lately, neighbours before
others. So who asks for everything again and again keeps nobody from what it asks for. Of a peer's requests, the one whose result
we have sent to fewest comes first, so that all results get away from their authors soon; then the one that has waited longest.
What a peer has had already comes after everything that others have not had. A result counts as sent to those that got all of it,
once to each.

A peer that takes places and no results comes after all others: one that withdraws its requests late, that takes a result for
longer than a turn, or a small one slowly. What counts are the seconds for which it has held a place in vain, because honest peers
withdraw requests too, soon after their turns have begun. It is forgiven by half in each minute. The caller passes times.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container
from dataclasses import dataclass

from psyche_core.p2p.downloads import AT_ONCE, BYTES_AT_ONCE, MOST_AT_ONCE

MAX_WAITING_PER_PEER = 16
"""Twice what an honest peer lets wait (`downloads.PER_PEER`), because some of what it withdrew may be on its way."""

WASTED_SECONDS = 10.0
"""A peer comes after another that has wasted so many seconds less, in whole multiples of this."""

FORGIVEN_SECONDS = 60.0
"""After this time half of what a peer has wasted counts, and half of the turns that it has had."""

SLOWEST_BYTES = 512 * 1024
"""Bytes a second at which a result must be taken at least; beyond that and one second, the time of a complete turn is wasted."""

MOST_SENDINGS = 65_536
"""So many times it is remembered who got what. Beyond that it is forgotten of the result that was first sent longest ago."""

_FORGOTTEN_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class _Waiting:
    """size: bytes of the result. beside: whether the peer is no neighbour."""

    size: int
    beside: bool


@dataclass(frozen=True, slots=True)
class _Turn:
    """began: time. size: bytes of the result."""

    began: float
    size: int

    @property
    def longest(self) -> float:
        """Seconds that are enough for this turn."""
        return 1.0 + self.size / SLOWEST_BYTES


class _Seconds:
    """Seconds of each peer, which lose half of their weight in each FORGIVEN_SECONDS."""

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[float, float]] = {}

    def add(self, peer: bytes, seconds: float, now: float) -> None:
        """Count seconds of a peer, and forget peers with next to nothing."""
        if seconds > 0:
            self._kept[peer] = self.of(peer, now) + seconds, now
        for other in [other for other in self._kept if self.of(other, now) < _FORGOTTEN_SECONDS]:
            del self._kept[other]

    def of(self, peer: bytes, now: float) -> float:
        """Return what counts of a peer's seconds now."""
        seconds, since = self._kept.get(peer, (0.0, now))
        return float(seconds * 0.5 ** ((now - since) / FORGIVEN_SECONDS))


class UploadQueue:
    """Requests by (result, peer).

    at_once: most requests that are answered at once, unless all are small: those may have BYTES_AT_ONCE together, and be
    MOST_AT_ONCE. per_peer: most waiting requests of one peer; more are refused. sendings: of how many times it is remembered who
    got what.
    """

    def __init__(self, *, at_once: int = AT_ONCE, per_peer: int = MAX_WAITING_PER_PEER, sendings: int = MOST_SENDINGS) -> None:
        self._at_once = at_once
        self._per_peer = per_peer
        self._sendings = sendings
        self._waiting: dict[tuple[bytes, bytes], _Waiting] = {}
        self._by_peer: Counter[bytes] = Counter()
        self._sending: dict[tuple[bytes, bytes], _Turn] = {}
        self._got: OrderedDict[bytes, set[bytes]] = OrderedDict()
        self._remembered = 0
        self._had = _Seconds()
        self._wasted = _Seconds()

    def add(self, name: bytes, peer: bytes, *, size: int, beside: bool = False) -> bool:
        """Let a request wait. Returns False if the peer has too many or has asked for this already.

        size: bytes of the result. beside: whether the peer is no neighbour; it comes after neighbours.
        """
        request = (name, peer)
        if request in self._waiting or request in self._sending or self._by_peer[peer] >= self._per_peer:
            return False

        self._waiting[request] = _Waiting(size, beside)
        self._by_peer[peer] += 1
        return True

    def begin(self, now: float) -> tuple[bytes, bytes] | None:
        """Return the next request to answer, as (result, peer), and count it as being answered; None if none may begin now.

        now: seconds of a clock that does not go back. Nothing begins before the next request, even if it were smaller.
        """
        if not self._waiting or not self._has_room(0):
            return None

        behind = {peer: int(self._wasted.of(peer, now) / WASTED_SECONDS) for peer in self._by_peer}
        had = {peer: self._had.of(peer, now) for peer in self._by_peer}
        sent = Counter({name: len(self._got.get(name, ())) for name, _ in self._waiting})
        for (name, peer), turn in self._sending.items():
            sent[name] += 1
            if peer in had:
                had[peer] += max(now - turn.began, turn.longest)

        def order(request: tuple[bytes, bytes]) -> tuple[bool, int, bool, float, int]:
            name, peer = request
            again = peer in self._got.get(name, ())
            return again, behind[peer], self._waiting[request].beside, had[peer], sent[name]

        request = min(self._waiting, key=order)  # min gives the first of equals
        size = self._waiting[request].size
        if not self._has_room(size):
            return None

        self._leave(*request)
        self._sending[request] = _Turn(now, size)
        return request

    def end(self, name: bytes, peer: bytes, *, complete: bool, now: float) -> None:
        """Note that a request was answered, or withdrawn (not complete). Does nothing if it is unknown.

        An answer that is complete after its turn counts as sent.
        """
        request = (name, peer)
        if complete:
            self._note_got(name, peer)
        if request in self._sending:
            turn = self._sending.pop(request)
            held = now - turn.began
            self._had.add(peer, held, now)
            self._wasted.add(peer, held - turn.longest if complete else held, now)
        elif request in self._waiting:
            self._leave(name, peer)

    def overdue(self, name: bytes, peer: bytes, *, now: float) -> None:
        """End the turn of a request that is answered for too long; its answer goes on beside others'."""
        turn = self._sending.pop((name, peer), None)
        if turn is not None:
            self._had.add(peer, now - turn.began, now)
            self._wasted.add(peer, now - turn.began, now)

    def expire(self, kept: Container[bytes]) -> None:
        """Forget who got results that are not kept any more; requests for them are withdrawn with `end`. kept: their names."""
        for name in [name for name in self._got if name not in kept]:
            self._forget(name)

    def _has_room(self, size: int) -> bool:
        """Whether a result of this size may be sent beside those that are being sent."""
        if len(self._sending) < self._at_once:
            return True

        together = size + sum(turn.size for turn in self._sending.values())
        return len(self._sending) < MOST_AT_ONCE and together <= BYTES_AT_ONCE

    def _note_got(self, name: bytes, peer: bytes) -> None:
        known = self._got.setdefault(name, set())
        if peer not in known:
            known.add(peer)
            self._remembered += 1
        while self._remembered > self._sendings:
            self._forget(next(iter(self._got)))

    def _forget(self, name: bytes) -> None:
        self._remembered -= len(self._got.pop(name))

    def _leave(self, name: bytes, peer: bytes) -> None:
        del self._waiting[name, peer]
        self._by_peer[peer] -= 1
        if not self._by_peer[peer]:
            del self._by_peer[peer]
