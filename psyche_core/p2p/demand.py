"""How many results a member receives at once, and how many requests wait at others, by what its own line carries. Pure.

Of small results many come at once, because each takes its round trips (`downloads.at_once_of`). On a slow line they would take
the line from each other, and whatever holders send that is not needed after all would be received in vain. So a member begins
with AT_ONCE. Each result that came quickly allows one more. One that did not come quickly allows one more as a try: if such tries
bring no more (`patience.Line`), the line is full, and as many come at once as it carries in a short time. How many that are is
kept for later rounds.

A request waits until its holder's line is free, so more requests wait than there are free places. A holder that is free answers
at once with the first bytes of the result, which are in vain if no place is left. So no more requests wait than the line carries
first bytes of in half a second; if places stay free, because the holders are busy, ever more, until an answer finds no place.
"""

from __future__ import annotations

from psyche_core.p2p.downloads import AT_ONCE, at_once_of
from psyche_core.p2p.patience import Line

QUICK_SECONDS = 1.0
"""A result that came in this time allows one more at once."""

FULL_SECONDS = 2.0
"""On a full line so many results come at once as it carries in this time."""

FIRST_BYTES = 64 * 1024
"""What a holder may have sent before it learns that its answer is not needed."""

SPARE_SECONDS = 0.5
"""In this time the line carries the first bytes for which requests wait beyond those for free places."""

WIDENED_SECONDS = 0.5
BUSY_SECONDS = 3.0
"""After so long without an answer twice as many requests may wait: when nearly nothing comes, and when something comes."""

_MOST_TIMES = 1024


class Demand:
    """What one member asks for at once. line: its own line, which the caller measures."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._size = 1
        self._most = AT_ONCE
        self._places = AT_ONCE
        self._times = 0
        self._grown_at = 0.0
        self._changed_at = 0.0

    def expect_size(self, size: int) -> None:
        """Note how large results are, in bytes."""
        self._size = max(size, 1)
        self._most = at_once_of(size)

    def completed(self, seconds: float, now: float) -> None:
        """Note that a result has come. seconds: from the first to the last byte."""
        if self.places >= self._most and not self._line.full:
            return

        if seconds <= QUICK_SECONDS:
            self._places = min(self.places + 1, self._most)
        elif self._line.full:
            self._places = max(AT_ONCE, min(self._most, int(self._line.rate * FULL_SECONDS / self._size)))
        elif now - self._grown_at >= QUICK_SECONDS:
            self._grown_at = now
            self._places = self.places + 1
            if not self._line.idle:
                self._line.tried()

    def answered(self, now: float, *, needed: bool) -> None:
        """Note that a holder began to send. needed: whether a place was left."""
        self._changed_at = now
        if not needed:
            self._times = 0

    def widen(self, now: float, *, busy: bool) -> bool:
        """Note that places are free, and all requests wait that may. Returns whether more may wait now.

        busy: whether anything comes.
        """
        if now - self._changed_at < (BUSY_SECONDS if busy else WIDENED_SECONDS) or self._times >= _MOST_TIMES:
            return False

        self._changed_at = now
        self._times = max(1, 2 * self._times)
        return True

    @property
    def places(self) -> int:
        """How many results come at once."""
        return min(self._places, self._most)

    @property
    def spare(self) -> int:
        """How many requests may wait beyond those for free places."""
        carried = int(self._line.best * SPARE_SECONDS / min(self._size, FIRST_BYTES))
        return max(carried, self.places - AT_ONCE) + self._times
