"""Decides when a run has been silent for so long that people should know: programs that are killed do not report their end."""

from __future__ import annotations

from typing import Final

from psyche_core.config.schema import CoordinatorConfig

LEAST_SECONDS: Final = 120.0
"""A shorter silence is never reported: machines may be busy, and event files may be copied from elsewhere at intervals."""

TIMES: Final = 2.0
"""A run counts as silent after this many times its longest wait."""

LONGEST_WAIT: Final = 3600.0
"""A longer wait between two events does not count as the run's usual wait: its programs were not running."""

RESTING: Final = ("Uninitialized", "WaitingForMembers", "Paused", "Finished")
"""Phases that last as long as people want; a server without members sends no events then."""


class Rhythm:
    """Knows the longest usual wait between two events of a run: from the run's time limits if known, else as observed."""

    def __init__(self) -> None:
        self._newest: float | None = None
        self._longest = 0.0
        self._limit: float | None = None

    def note(self, time: float) -> None:
        """Note that an event came. time: unix seconds."""
        if self._newest is not None and time - self._newest <= LONGEST_WAIT:
            self._longest = max(self._longest, time - self._newest)
        self._newest = time if self._newest is None else max(self._newest, time)

    def know(self, config: CoordinatorConfig) -> None:
        """Take the time limits of a run's configuration. A state changes at the end of each phase at the latest."""
        round_time = config.max_round_train_time + config.round_witness_time
        self._limit = float(max(config.warmup_time, round_time, config.cooldown_time))

    def silent(self, now: float, *, phase: str) -> bool:
        """Return whether the silence is longer than this run ever needs. phase: the newest one known, empty for none."""
        if self._newest is None or phase in RESTING:
            return False
        longest = self._longest if self._limit is None else self._limit
        return now - self._newest > max(LEAST_SECONDS, TIMES * longest)
