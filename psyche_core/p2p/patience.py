"""For how long a fetch waits, and how fast a source must send: by what comes, not by a fixed time. Pure; the caller passes times.

A blob of many bytes needs longer on a slow line, and longer if others come on it at the same time. So a fetch that makes progress
is not given up (`Patience`), and what counts as too slow for a source depends on what came before (`Pace`). How fast one source
sends now, `Course` measures.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

REMEMBERED = 9
"""Blobs whose rates are remembered. The median of these counts, so that a few that came very fast or slowly decide nothing."""

SLOWER = 16
"""How many times slower than usual a source may be."""

LAGS = 4
"""A source lags that needs so many times longer for the rest of a blob than is usual for a whole one. Before that is known, it
lags if it needs longer than one of so many parts of the fetch's time."""


class Patience:
    """The wait of one fetch.

    timeout: seconds without progress after which it is over. now: when it begins, seconds. least: bytes a second that count as
    progress; with the default nothing does, and the timeout is one for all.
    """

    def __init__(self, timeout: float, *, now: float, least: float = math.inf) -> None:
        self.timeout: float = timeout
        self._until = now + timeout
        self._step = math.inf if math.isinf(least) else least * timeout
        self._fresh = 0

    def note(self, received: int, now: float) -> None:
        """Note bytes that have come since the last call. The wait begins anew when as many came as `least` asks of a timeout."""
        self._fresh += received
        if received and self._fresh >= self._step:
            self._fresh = 0
            self._until = now + self.timeout

    def left(self, now: float) -> float:
        """Return the seconds for which to wait; 0 when it is over."""
        return max(0.0, self._until - now)


@dataclass(slots=True, eq=False)
class Course:
    """How one source sends one blob.

    looked_at: when it began, then when it was last looked at. size: of the blob in bytes, None before it is known. received:
    bytes so far. rate: bytes a second between the last two looks. looks: how many there were since the last `start_over`.
    """

    looked_at: float
    size: int | None = None
    received: int = 0
    rate: float = 0.0
    looks: int = 0
    _seen: int = 0

    def look(self, now: float, *, every: float) -> None:
        """Measure the rate, if so many seconds have passed since the last time."""
        passed = now - self.looked_at
        if passed >= every:
            self.rate = (self.received - self._seen) / max(passed, 1e-3)
            self._seen, self.looked_at = self.received, now
            self.looks += 1

    def start_over(self, now: float) -> None:
        """Measure from now on, to compare the source with another one."""
        self._seen, self.looked_at, self.looks = self.received, now, 0

    @property
    def rest(self) -> float:
        """Seconds for the rest of the blob at the last rate."""
        left = 0 if self.size is None else self.size - self.received
        return 0.0 if left <= 0 else left / self.rate if self.rate > 0 else math.inf


class Pace:
    """How fast blobs have come lately. floor: bytes a second that a source must send in any case."""

    def __init__(self, floor: float) -> None:
        self._floor = floor
        self._rates: deque[float] = deque(maxlen=REMEMBERED)

    def completed(self, size: int, seconds: float) -> None:
        """Note that a blob has come. size: bytes. seconds: between its first and its last byte."""
        self._rates.append(size / max(seconds, 1e-3))

    @property
    def least(self) -> float:
        """Bytes a second below which a source is too slow: the floor, or SLOWER times less than usual if that is more."""
        return max(self._floor, median(self._rates) / SLOWER) if self._rates else self._floor

    def longest(self, size: int, timeout: float) -> float:
        """Return the seconds that a source may need for the rest of a blob before it lags. size: bytes. timeout: of the fetch."""
        return LAGS * size / median(self._rates) if self._rates else timeout / LAGS
