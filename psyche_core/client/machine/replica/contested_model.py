"""A contested model: members offer different masters for the epoch's start, nobody signed one, and liars could be behind each.

That happens after the death of all members in the middle of an epoch, when no more of them kept the last rounds than there may be
liars, and a liar offers another model. Nobody can tell who is right, so nobody takes either. Where two warmups in a row end so,
all give that model up: those who have it, too, report which signed step they hold, and the run goes back to the newest of these
(protocol F18). Only where nobody holds any, the owner decides.

Members that offer one model and are more than there may be liars settle it: then the model is not contested, and liars cannot
make the run go back.
"""

from __future__ import annotations

from collections import Counter

from psyche_core.client.machine.epoch import EpochNotes
from psyche_core.client.machine.replica import missing_model
from psyche_core.client.machine.state import MachineState
from psyche_core.coordinator.round.witness import tolerated
from psyche_core.coordinator.state import NO_DIGEST, CoordinatorState
from psyche_core.telemetry import events as telemetry
from psyche_core.types import ClientState, RunState

_HALF = 1 / 2
"""Fraction of warmup_time after which members of a contested model report what they hold."""


def record_contested(client: MachineState, state: CoordinatorState, notes: EpochNotes) -> None:
    """Record that the model that this epoch starts with is contested."""
    if state.run_state is RunState.Warmup and not _repeated(client, state, notes) and _is_contested(state, notes):
        client.contested = (state.generation, state.epoch.start_step - 1, notes.key)


def given_up(client: MachineState, state: CoordinatorState, notes: EpochNotes) -> bool:
    """Whether the model that the epoch starts with is given up: it is contested in a second warmup."""
    return state.run_state is RunState.Warmup and _repeated(client, state, notes) and _is_contested(state, notes)


def defers_readiness(client: MachineState, state: CoordinatorState, notes: EpochNotes) -> bool:
    """Whether we have the model and do not announce that we are ready, because it was contested in an earlier warmup.

    Until enough members offer ours, or half of the warmup passed without another one; where it is contested then, report
    instead which signed step we hold.
    """
    if notes.ready_sent or notes.slot is None or not _repeated(client, state, notes):
        return False
    if notes.own_offer is not None and _votes(state, notes)[notes.own_offer[1]] > _max_liars(state):
        return False
    if client.now - notes.since < state.config.warmup_time * _HALF:
        return True
    if not _is_contested(state, notes):
        return False

    missing_model.report_missing_model(client, state, notes, contested=True)
    return True


def warn_of_few_offers(client: MachineState, notes: EpochNotes, step: int) -> None:
    """Tell people if the masters that were fetched are the word of no more members than there may be liars."""
    state, offering = client.state, len(notes.resync.last_tried_slots)
    if state is None or state.run_state is not RunState.Warmup or any(end.step == step for end in state.ends):
        return

    if 0 < offering <= _max_liars(state):
        notify(client, state, step=step, offering=offering, taken=True)


def notify(client: MachineState, state: CoordinatorState, *, step: int, offering: int, taken: bool) -> None:
    """Tell people that only `offering` members vouch for the model after `step`, and which epoch end the run can return to."""
    signed = max((end.step for end in state.ends if end.digest != NO_DIGEST and end.step < step), default=None)
    starts = state.run_state is RunState.Warmup
    client.notify(telemetry.ModelContested(client.run_id, step, offering, len(_members(state)), signed, taken, starts))


def most_votes(state: CoordinatorState, notes: EpochNotes, step: int) -> int:
    """How many members offer the same model after `step`, at most; at least 1."""
    others = frozenset(slot for slot in _members(state) if slot != notes.slot)
    return max(notes.resync.votes(step, others, ours=None).values(), default=1)


def _repeated(client: MachineState, state: CoordinatorState, notes: EpochNotes) -> bool:
    """Whether this model was contested in an earlier warmup."""
    if client.contested is None:
        return False

    generation, step, key = client.contested
    return (generation, step) == (state.generation, state.epoch.start_step - 1) and key != notes.key


def _is_contested(state: CoordinatorState, notes: EpochNotes) -> bool:
    start = state.epoch.start_step - 1
    if any(end.step == start for end in state.ends):
        return False

    votes = _votes(state, notes)
    return len(votes) > 1 and max(votes.values()) <= _max_liars(state)


def _votes(state: CoordinatorState, notes: EpochNotes) -> Counter[bytes]:
    start = state.epoch.start_step - 1
    ours = notes.own_offer[1] if notes.own_offer is not None and notes.own_offer[0] == start else None
    others = frozenset(slot for slot in _members(state) if slot != notes.slot)
    return notes.resync.votes(start, others, ours=ours)


def _members(state: CoordinatorState) -> frozenset[int]:
    return frozenset(slot for slot, member in enumerate(state.epoch.clients) if member.state is not ClientState.Ejected)


def _max_liars(state: CoordinatorState) -> int:
    """How many liars there may be."""
    return tolerated(len(_members(state)))
