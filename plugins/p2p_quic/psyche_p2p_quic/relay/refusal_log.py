"""Which refused clients are worth a log line: each once for each reason, and in a flood only some of them. Pure.

A member that waits for the start of its run tries again every few seconds, and is refused each time for the same reason.
"""

from __future__ import annotations

from psyche_core.rate_limit import TokenBucket

REFUSALS_PER_SECOND, REFUSALS_BURST = 1.0, 20
REMEMBERED = 4096
"""Most clients whose reasons are remembered; strangers can make any number of keys."""


class RefusalLog:
    """Remembers who was named in the log, and for what."""

    def __init__(self) -> None:
        self._bucket = TokenBucket(REFUSALS_PER_SECOND, burst=REFUSALS_BURST)
        self._said: dict[bytes, str] = {}
        self._unsaid = 0

    def line(self, key: bytes, host: str, reason: str, now: float) -> str | None:
        """Return a line about a refused client, None if there is to be none."""
        if self._said.get(key) == reason:
            return None
        if self._bucket.try_take(now) > 0.0:
            self._unsaid += 1
            return None

        self._said.pop(key, None)
        self._said[key] = reason
        if len(self._said) > REMEMBERED:
            del self._said[next(iter(self._said))]
        unsaid = f" ({self._unsaid} more since the last such line)" if self._unsaid else ""
        self._unsaid = 0
        return f"{key.hex()[:10]} refused, from {host}: {reason}{unsaid}"

    def forget(self, key: bytes) -> None:
        """Note that a client was admitted, so that it is named again if it is refused later."""
        self._said.pop(key, None)
