"""How many bytes a second all answers to blob requests may take, for members whose line others use, too.

Results of rounds go first: other members wait for them, so they are never held back, and what they take is missing for the
pieces of the model that new members ask for. Messages are not counted; they are small. What a relay passes on is counted once,
where we send it.
"""

from __future__ import annotations

import asyncio

import anyio

from psyche_core.rate_limit import TokenBucket

_PART_SECONDS = 0.1
_LEAST_PART = 16 * 1024
_LEAST_SHARE = 8 * 1024
"""Bytes a second that each piece gets, or fewer are sent at once. Receivers read 16 KiB at a time and wait 10 s for them."""

_MOST_DEBT_SECONDS = 10.0
"""Results that take more than the limit do not keep pieces waiting for longer than this."""


class UploadLimit:
    """`rate` bytes a second; None for no limit. Used in one event loop."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._bucket = TokenBucket(rate, burst=_LEAST_PART if rate is None else max(_LEAST_PART, rate * _PART_SECONDS))

    def part_bytes(self, most: int) -> int:
        """Return how many bytes of a piece are sent at once: a tenth of a second's, at least 16 KiB, at most `most`."""
        return most if self._rate is None else min(most, max(_LEAST_PART, int(self._rate * _PART_SECONDS)))

    def pieces_at_once(self, most: int) -> int:
        """Return how many pieces may be sent at once so that each makes progress: at least one, at most `most`."""
        return most if self._rate is None else min(most, max(1, int(self._rate / _LEAST_SHARE)))

    def note_result(self, count: int) -> None:
        """Count bytes of a round's result, which is sent at once."""
        now = asyncio.get_running_loop().time()
        if self._bucket.wait(now) < _MOST_DEBT_SECONDS:
            self._bucket.take(now, count)

    async def wait_for(self, count: int) -> None:
        """Wait until so many bytes of a piece may be sent."""
        seconds = self._bucket.take(asyncio.get_running_loop().time(), count)
        if seconds > 0.0:
            await anyio.sleep(seconds)
