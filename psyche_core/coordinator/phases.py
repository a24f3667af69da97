"""Phases of a run: when one was entered, and whether its time is over."""

from __future__ import annotations

from dataclasses import replace

from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import RunState


def due(since: int, now: int, seconds: int) -> bool:
    """Whether `seconds` have passed since `since`; at least one second must, even for 0 (reference 2)."""
    return now != since and now >= since + seconds


def entered(state: CoordinatorState, run_state: RunState, now: int) -> CoordinatorState:
    """The state in another phase, entered now."""
    return replace(state, run_state=run_state, since=now)


def wait_for_members(state: CoordinatorState, now: int) -> CoordinatorState:
    """Enter WaitingForMembers; with enough members already there, the extra time starts now (F13)."""
    enough = len(state.pending) >= state.config.init_min_clients
    return replace(entered(state, RunState.WaitingForMembers, now), minimum_since=now if enough else None)
