"""Decides when to report a recurring problem, such as a full disk, and when to report that it is over."""

from __future__ import annotations

import time
from collections.abc import Callable

AGAIN_SECONDS = 300.0
"""Minimum time between two reports, in seconds."""


class RepeatedProblem:
    """Limits reports: the first at once, later ones at most every AGAIN_SECONDS, one at the end. clock: seconds, for tests.

    times: number of failures since the report before, at the time of a report; the failure itself is included.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reported_at: float | None = None
        self._unreported = 0
        self.times: int = 0

    def failed(self) -> bool:
        """Record a failure; return whether to report it now."""
        now = self._clock()
        self._unreported += 1
        if self._reported_at is not None and now - self._reported_at < AGAIN_SECONDS:
            return False

        self._reported_at = now
        self.times, self._unreported = self._unreported, 0
        return True

    def went_well(self) -> bool:
        """Record a success; return whether to report it now, because a failure was reported before."""
        was_reported, self._reported_at, self._unreported = self._reported_at is not None, None, 0
        return was_reported
