"""Phases of a run: enters them, checks whether their time is over, and says which round is being played."""

from __future__ import annotations

from dataclasses import replace

from psyche_core.coordinator.state import CoordinatorState, Round
from psyche_core.errors import CoordinatorError
from psyche_core.types import RunState


def due(since: int, now: int, seconds: int) -> bool:
    """Whether `seconds` have passed since `since`. At least one second must pass, even for 0, as in the reference implementation.

    since, now: unix seconds.
    """
    return now != since and now >= since + seconds


def entered(state: CoordinatorState, run_state: RunState, now: int) -> CoordinatorState:
    """Return the state in another phase that begins at `now` (unix seconds)."""
    return replace(state, run_state=run_state, since=now)


def wait_for_members(state: CoordinatorState, now: int) -> CoordinatorState:
    """Enter WaitingForMembers. If enough members are already pending, the extra waiting time starts now (F13)."""
    enough = len(state.pending) >= state.config.init_min_clients
    return replace(entered(state, RunState.WaitingForMembers, now), minimum_since=now if enough else None)


def active_round(state: CoordinatorState) -> Round:
    """Return the current round. Raises CoordinatorError (NoActiveRound)."""
    if state.current_round is None:
        raise CoordinatorError("NoActiveRound", "no round has been played in this epoch")

    return state.current_round
