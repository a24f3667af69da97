"""For how long a fetch waits, and how fast a source must send: by what comes, not by a fixed time. Pure; the caller passes times.

A blob of many bytes needs longer on a slow line, and longer if others come on it at the same time. So a fetch that makes progress
is not given up (`Patience`), and what counts as too slow for a source depends on what came before (`Pace`).
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

REMEMBERED = 9
"""Blobs whose rates are remembered. The median of these counts, so that a few that came very fast or slowly decide nothing."""

SLOWER = 16
"""How many times slower than usual a source may be."""


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
