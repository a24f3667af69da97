"""When to report a problem that comes again and again, such as a full disk, and when to report that it is over."""

from __future__ import annotations

import time
from collections.abc import Callable

AGAIN_SECONDS = 300.0
"""Least time from one telling to the next."""


class RepeatedProblem:
    """Told at once, then at most every AGAIN_SECONDS, and once when it is over. clock: seconds, for tests."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_at: float | None = None

    def failed(self) -> bool:
        """It went wrong: whether to tell that now."""
        now = self._clock()
        if self._told_at is not None and now - self._told_at < AGAIN_SECONDS:
            return False

        self._told_at = now
        return True

    def went_well(self) -> bool:
        """It went well: whether to tell that now, because people were told that it did not."""
        was_told, self._told_at = self._told_at is not None, None
        return was_told
