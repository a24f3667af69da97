"""Missed duties of witnesses: counts them, and decides for which witnesses rounds do not wait and which are dropped (F16).

Each slot has a score, `Client.missed`. Rounds raise it when they end; statements lower it again.
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.coordinator.commands import Outcome
from psyche_core.coordinator.exits import exited
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.round.witness import quorum
from psyche_core.coordinator.state import Client, CoordinatorState, Round
from psyche_core.types import ClientState

WAITED_MISS = 32
"""Added to a slot's `missed` for a missed duty if the round waited for the slot."""

UNWAITED_MISS = 2
"""Added if the round did not wait for the slot. Less, because the other witnesses may only have been faster."""

STATED = 1
"""Subtracted from `missed` for each statement."""

WAITED_MISSES = 64
"""From this score on, rounds do not wait for a witness. Two missed duties while it was waited for give this score."""

MAX_MISSED = 128
"""From this score on, a slot is dropped."""

MOST_MISSED = 255
"""Upper limit of `missed`."""


def silent_witnesses(state: CoordinatorState, current: Round) -> frozenset[int]:
    """Return the healthy elected witnesses that sent no statement in a round (F16); none if fewer than a quorum sent one.

    Witnesses that returned in the same round are left out: they may have been absent when the others sent their statements.
    """
    elected = witness_slots(state, current)
    if len(current.statements) < quorum(len(elected)):
        return frozenset()

    stated = {statement.index for statement in current.statements}
    return frozenset(slot for slot in elected if slot not in stated and _answerable(state.epoch.clients[slot], current.height))


def _answerable(client: Client, height: int) -> bool:
    came_back = client.rejoins > 0 and client.exited_height == height
    return client.state is ClientState.Healthy and not came_back


def with_missed_duties(state: CoordinatorState, slots: frozenset[int]) -> CoordinatorState:
    """Return the state with one more missed duty for each of these slots."""
    for slot in slots:
        waited = state.epoch.clients[slot].missed < WAITED_MISSES
        state = with_missed(state, slot, WAITED_MISS if waited else UNWAITED_MISS)
    return state


def with_missed(state: CoordinatorState, slot: int, change: int) -> CoordinatorState:
    """Return the state with a slot's score of missed duties changed by `change`, kept within 0 and MOST_MISSED."""
    missed = state.epoch.clients[slot].missed
    changed = min(max(missed + change, 0), MOST_MISSED)
    if changed == missed:
        return state

    clients = list(state.epoch.clients)
    clients[slot] = replace(clients[slot], missed=changed)
    return replace(state, epoch=replace(state.epoch, clients=tuple(clients)))


def dropped_for_missing(state: CoordinatorState, now: int) -> Outcome:
    """Drop the slots that missed too many duties (F16). They may return like any dropped slot."""
    leaving = tuple(slot for slot in state.healthy_slots if state.epoch.clients[slot].missed >= MAX_MISSED)
    return exited(state, leaving, ClientState.Dropped, now)
