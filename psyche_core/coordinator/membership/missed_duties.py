"""Missed duties: counts them, and decides for which witnesses rounds do not wait and which slots are dropped (F16).

Each slot has a score, `Client.missed`. Rounds raise it when they end: for witnesses that did not state, and for trainers whose
result too few witnesses saw. Statements that come in time lower it again, late ones raise it.
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.coordinator.commands import Outcome
from psyche_core.coordinator.membership.exits import exited
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.round.witness import quorum, split_vote_slots
from psyche_core.coordinator.state import Client, CoordinatorState, Round
from psyche_core.types import ClientState, RunState

WAITED_MISS = 32
"""Added to a slot's `missed` for a missed duty if the round waited for the slot."""

UNWAITED_MISS = 2
"""Added if the round did not wait for the slot. Less, because the other witnesses may only have been faster."""

STATED = 1
"""Subtracted from `missed` for each statement that comes in time."""

LATE_STATEMENT = 2
"""Added for a late statement that comes one whole second after RoundWitness began, or later but within VERY_LATE_PART of a round.
Times are whole seconds, so a delay of a tenth of a second looks like this in every tenth round; the others make up for it."""

VERY_LATE_STATEMENT = 16
"""Added for a statement that comes later than that, from two whole seconds on: then more than one second has certainly passed."""

LATE_PART = 5
"""Up to one part in this many of the epoch's mean round, a statement is in time. A member on a slow line, or behind a slow
provider of a chain, is a second late for no fault of its own."""

VERY_LATE_PART = 2
"""Up to one part in this many of the epoch's mean round, a late statement is not very late."""

LEFT_BEHIND = 80
"""The score of a slot that lateness brought to WAITED_MISSES. It is waited for again after 17 statements in time."""

WAITED_MISSES = 64
"""From this score on, rounds do not wait for a witness. Two missed duties while it was waited for give this score."""

MAX_MISSED = 128
"""From this score on, a slot is dropped: after four missed duties while it was waited for."""

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
    return frozenset(slot for slot in elected if slot not in stated and is_accountable(state.epoch.clients[slot], current.height))


def split_vote_trainers(state: CoordinatorState, before: Round) -> frozenset[int]:
    """Return the healthy slots whose result of round `before` divided the witnesses: a missed duty of their trainers (F16).

    Trainers that were absent and have returned since are left out, as in health reports.
    """
    return frozenset(slot for slot in split_vote_slots(state, before) if is_accountable(state.epoch.clients[slot], before.height))


def is_accountable(client: Client, height: int) -> bool:
    """Whether a slot is healthy and was not absent in the round of this height or later: only such a one is waited for."""
    came_back = client.rejoins > 0 and client.exited_height >= height
    return client.state is ClientState.Healthy and not came_back


def with_statement(state: CoordinatorState, slot: int, now: int) -> CoordinatorState:
    """Return the state with a slot's score after its statement, which came at `now` (unix seconds).

    A late statement counts like any other, but raises the score while rounds wait for the slot. Lateness alone drops nobody.
    """
    client = state.epoch.clients[slot]
    current = state.epoch.rounds[-1]
    late = _lateness(state, current, now) if is_accountable(client, current.height) else 0
    if not late:
        return with_missed(state, slot, -STATED)
    if client.missed >= WAITED_MISSES:
        return state

    missed = client.missed + late
    return with_missed(state, slot, (LEFT_BEHIND if missed >= WAITED_MISSES else missed) - client.missed)


def _lateness(state: CoordinatorState, current: Round, now: int) -> int:
    """Return what is added for a statement that comes at `now`; 0 if it is in time.

    The epoch's mean round is taken since the epoch began, so in its first rounds it includes the warmup.
    """
    seconds = now - state.since if state.run_state is RunState.RoundWitness else 0
    mean = (now - state.epoch.start_time) // (current.height + 1)
    if seconds <= max(mean // LATE_PART, 0):
        return 0

    return LATE_STATEMENT if seconds <= max(mean // VERY_LATE_PART, 1) else VERY_LATE_STATEMENT


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
