"""Notes cooldowns in which nobody could tell the coordinator anything: evidence about the epoch's rounds was not heard then."""

from __future__ import annotations

from collections.abc import Callable

from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import RunState


class CooldownWatch:
    """Looks at a cooldown's beginning and at its end.

    reached: whether an honest member reaches the coordinator now. unheard: called with the state after a cooldown at whose
    beginning and end none did.
    """

    def __init__(self, reached: Callable[[], bool], unheard: Callable[[CoordinatorState], None]) -> None:
        self._reached = reached
        self._unheard = unheard
        self._cooling = False
        self._silent = False

    def changed(self, state: CoordinatorState) -> None:
        """The coordinator's phase or progress has changed."""
        began = state.run_state is RunState.Cooldown and not self._cooling
        ended = state.run_state is not RunState.Cooldown and self._cooling
        self._cooling = state.run_state is RunState.Cooldown
        if began:
            self._silent = not self._reached()
        if ended and self._silent and not self._reached():
            self._unheard(state)
