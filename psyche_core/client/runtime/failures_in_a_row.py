"""Ends a client whose plugin fails in one piece of work after the other: it repeats its mistake, and never takes part again.

A failure now and then is an event that the client machine answers. What other members or the network cause does not count.
"""

from __future__ import annotations

from psyche_core.errors import PluginFailed

MAX_FAILURES = 5
"""Failures in a row after which the client stops."""


class FailuresInARow:
    """Counts failures of one kind of work. what: the pieces of work in the message, as in `4 shares`."""

    def __init__(self, what: str, *, limit: int = MAX_FAILURES) -> None:
        self._what = what
        self._limit = limit
        self._count = 0

    def succeeded(self) -> None:
        """Begin to count anew."""
        self._count = 0

    def failed(self, sentence: str, cause: Exception) -> None:
        """Count a failure. sentence: what failed, with the plugin. Raises PluginFailed when it was the last one allowed."""
        self._count += 1
        if self._count >= self._limit:
            message = (
                f"{sentence}; {self._count} {self._what} in a row have failed, so this client stops: mend the plugin or its "
                "settings, then start the client again"
            )
            raise PluginFailed(message) from cause
