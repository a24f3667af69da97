"""Measures how long it took to fetch a round's results of other members: from the first download's start to the last one's end.

Pure. A download between two rounds counts for the round that ends then. A download that is still running when a round ends counts
for the next round.
"""

from __future__ import annotations

from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry.events import ResultsFetched
from psyche_core.types import RunState

_PLAYING = (RunState.RoundTrain, RunState.RoundWitness)


class FetchTimes:
    """Remembers the downloads of the present round. now, in all methods: seconds of a steady clock."""

    def __init__(self) -> None:
        self._round: tuple[int, int] | None = None
        self._running = 0
        self._first: float | None = None
        self._last: float | None = None
        self._results = self._failed = self._bytes = 0

    def begun(self, now: float) -> None:
        """Note that a download started."""
        self._running += 1
        if self._first is None:
            self._first = now

    def ended(self, now: float, *, size: int | None) -> None:
        """Note that a download ended. size: of the result in bytes; None if the download failed."""
        self._running -= 1
        self._last = now
        if size is None:
            self._failed += 1
        else:
            self._results += 1
            self._bytes += size

    def see(self, state: CoordinatorState, *, now: float) -> ResultsFetched | None:
        """Take in the next state. Return what was fetched in the round that has ended; None if nothing was."""
        played = state.current_round if state.run_state in _PLAYING else None
        present = None if played is None else (state.progress.epoch, played.height)
        if present == self._round:
            return None

        former, self._round = self._round, present
        told = None
        if former is not None and self._first is not None and self._last is not None:
            told = ResultsFetched(
                *former, self._results, self._failed, self._bytes, seconds=self._last - self._first, idle_seconds=now - self._last
            )
        self._first = now if self._running else None
        self._last = None
        self._results = self._failed = self._bytes = 0
        return told
