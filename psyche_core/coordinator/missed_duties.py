"""Duties that witnesses missed: how they are counted, which witnesses are no longer waited for, and which are dropped (F16).

Each slot has a score, `Client.missed`. Rounds raise it when they end; statements lower it again.
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.coordinator.commands import Outcome
from psyche_core.coordinator.committee import witness_slots
from psyche_core.coordinator.exits import exited
from psyche_core.coordinator.state import Client, CoordinatorState, Round
from psyche_core.coordinator.witness import quorum
from psyche_core.types import ClientState

WAITED_MISS = 32
"""What a missed duty adds to a slot's `missed` where the round waited for it."""

UNWAITED_MISS = 2
"""The same where nobody waited for it: the others may only have been faster."""

STATED = 1
"""What a statement takes off `missed`."""

WAITED_MISSES = 64
"""From here on a witness is not waited for: two duties missed while it was, about 32 statements ago."""

MAX_MISSED = 128
"""From here on a slot is dropped."""

MOST_MISSED = 255
"""Where `missed` stops growing."""


def silent_witnesses(state: CoordinatorState, current: Round) -> frozenset[int]:
    """Elected witnesses that did not state in a round, though healthy (F16); none where fewer than a quorum stated.

    Who came back in this very round is excused: it may have been away when the others stated.
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
    """A missed duty for each of these slots."""
    for slot in slots:
        waited = state.epoch.clients[slot].missed < WAITED_MISSES
        state = with_missed(state, slot, WAITED_MISS if waited else UNWAITED_MISS)
    return state


def with_missed(state: CoordinatorState, slot: int, change: int) -> CoordinatorState:
    """A slot's score of missed duties changed, within its bounds."""
    missed = state.epoch.clients[slot].missed
    changed = min(max(missed + change, 0), MOST_MISSED)
    if changed == missed:
        return state

    clients = list(state.epoch.clients)
    clients[slot] = replace(clients[slot], missed=changed)
    return replace(state, epoch=replace(state.epoch, clients=tuple(clients)))


def dropped_for_missing(state: CoordinatorState, now: int) -> Outcome:
    """Drop who missed too many duties (F16); it may come back like any dropped slot."""
    leaving = tuple(slot for slot in state.healthy_slots if state.epoch.clients[slot].missed >= MAX_MISSED)
    return exited(state, leaving, ClientState.Dropped, now)
