"""The clock of a coordinator that runs on a machine of its own: unix seconds that never go back and never jump.

The coordinator compares the times in its state with the time of each command. A clock of a machine is set, by NTP or by hand: set
back by an hour, a phase of five seconds would last an hour longer. A chain has its own clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from psyche_core.coordinator.state import CoordinatorState


class CoordinatorClock:
    """Called without arguments, returns unix seconds.

    It starts at the wall clock's time, or at the newest time in `state` if that is later, and advances with the monotonic clock.

    Args:
        state: the state with which the coordinator begins.
        wall: returns unix seconds; read once.
        monotonic: returns seconds of a clock that nobody sets.
    """

    def __init__(
        self,
        state: CoordinatorState,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._began = monotonic()
        self._start = max(wall(), state.since, state.minimum_since or 0, state.epoch.ready_since or 0)

    def __call__(self) -> float:
        """The time now, in unix seconds."""
        return self._start + self._monotonic() - self._began
