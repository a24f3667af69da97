"""How long nothing may come of a run before it is worth saying: programs that are killed do not tell that they end."""

from __future__ import annotations

from typing import Final

from psyche_core.config.schema import CoordinatorConfig

LEAST_SECONDS: Final = 120.0
"""A shorter silence is never told: machines may be busy, and files may be copied from elsewhere now and then."""

TIMES: Final = 2.0
"""How many times its longest wait a run may be silent."""

LONGEST_WAIT: Final = 3600.0
"""A longer wait between two events is no part of the run's rhythm: its programs were away."""

RESTING: Final = ("Uninitialized", "WaitingForMembers", "Paused", "Finished")
"""Phases that last as long as people want; a server alone tells nothing then."""


class Rhythm:
    """The longest wait between two events of a run: by its limits where they are known, else as it was seen."""

    def __init__(self) -> None:
        self._newest: float | None = None
        self._longest = 0.0
        self._limit: float | None = None

    def note(self, time: float) -> None:
        """Something came. time: unix seconds."""
        if self._newest is not None and time - self._newest <= LONGEST_WAIT:
            self._longest = max(self._longest, time - self._newest)
        self._newest = time if self._newest is None else max(self._newest, time)

    def know(self, config: CoordinatorConfig) -> None:
        """A state of the run came, which changes at the end of each phase at the latest."""
        round_time = config.max_round_train_time + config.round_witness_time
        self._limit = float(max(config.warmup_time, round_time, config.cooldown_time))

    def silent(self, now: float, *, phase: str) -> bool:
        """Whether nothing came for longer than this run ever takes. phase: the newest that was told, empty for none."""
        if self._newest is None or phase in RESTING:
            return False
        longest = self._longest if self._limit is None else self._limit
        return now - self._newest > max(LEAST_SECONDS, TIMES * longest)
