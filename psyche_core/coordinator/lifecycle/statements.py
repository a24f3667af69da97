"""Statements of clients: that they are ready after loading (warmup), and which results a round's witnesses saw.

A statement counts only if a healthy member sends it for its own slot (F8). This module does not compare its claims with other
statements; `witness` counts the votes. An elected witness that left and returned in the same round may still send a statement,
and the round waits for it as for the others (F15).
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.coordinator.commands import Outcome, StatementVoided, WarmupWitness, Witness
from psyche_core.coordinator.history import history_with_statement
from psyche_core.coordinator.lifecycle.challenges import words_problem
from psyche_core.coordinator.lifecycle.round_timing import everybody_stated
from psyche_core.coordinator.lifecycle.rounds import finish_round
from psyche_core.coordinator.lifecycle.warmup import check_returning_model, reported_in_warmup, returned_in_warmup
from psyche_core.coordinator.membership.members import returned
from psyche_core.coordinator.membership.missed_duties import WAITED_MISSES, with_missed, with_statement
from psyche_core.coordinator.phases import active_round, entered
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.bloom_filter import BLOOM_BYTES
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.round.witness import quorum
from psyche_core.coordinator.state import CoordinatorState, Round
from psyche_core.errors import CoordinatorError
from psyche_core.types import MAX_CLIENTS, MAX_WITNESSES, ClientState, NodeIdentity, RunState, WitnessStatement

_LENGTHS = {"participants": MAX_CLIENTS // 8, "broadcast_bloom": BLOOM_BYTES, "merkle_root": 32, "model_digest": 32}


def warmup_witness(state: CoordinatorState, command: WarmupWitness, now: int, *, seed: int) -> Outcome:
    """Count a client as ready, or as one that cannot get the model.

    The first round starts when all clients that warmup waits for are ready. A dropped or withdrawn slot whose client joined again
    becomes healthy with this command, in warmup and during rounds. During rounds, the command of a healthy slot changes nothing.
    now: unix seconds. seed: u64, for the round that may start. Raises CoordinatorError (Halted, InvalidRunState, InvalidWitness,
    DuplicateWitness, RejoinsExhausted).
    """
    _refuse_unless(state, RunState.Warmup, RunState.RoundTrain, RunState.RoundWitness)
    slot = _own_slot(state, command.sender, epoch=command.epoch, index=command.index)
    if len(command.model_digest) != 32:
        raise CoordinatorError("InvalidWitness", f"model_digest must be 32 bytes, got {len(command.model_digest)}")

    warming_up = state.run_state is RunState.Warmup
    if state.epoch.clients[slot].state is ClientState.Healthy:
        return reported_in_warmup(state, command, now, seed=seed) if warming_up else (state, ())

    if warming_up:
        check_returning_model(state, command)
    state, events = returned(state, slot)
    if not warming_up:
        return state, events

    state, started = returned_in_warmup(state, now, seed=seed)
    return state, (*events, *started)


def witness(state: CoordinatorState, command: Witness, now: int, *, seed: int) -> Outcome:
    """Store an elected witness's statement. A quorum of statements ends RoundTrain, all statements end RoundWitness (F15).

    A statement that names slots without a share is void: it is not stored, and rounds no longer wait for this witness (F16).
    now: unix seconds. seed: u64, for the round that may start. Raises CoordinatorError (Halted, InvalidRunState, NoActiveRound,
    InvalidWitness, DuplicateWitness, WitnessesFull).
    """
    _refuse_unless(state, RunState.RoundTrain, RunState.RoundWitness)
    current = active_round(state)
    statement = command.statement
    elected = witness_slots(state, current)
    _check_statement(state, current, command.sender, statement, elected)
    stated = any(stored.index == statement.index for stored in current.statements)
    if not stated and _claims_unassigned_slots(state, current, statement):
        return _voided(state, current, statement, now, seed=seed)
    if stated:
        raise CoordinatorError("DuplicateWitness", f"slot {statement.index} has already stated in round {current.height}")
    if len(current.statements) >= MAX_WITNESSES:
        raise CoordinatorError("WitnessesFull", f"round {current.height} already holds {MAX_WITNESSES} statements")

    stored = replace(current, statements=(*current.statements, statement))
    epoch = replace(state.epoch, rounds=(*state.epoch.rounds[:-1], stored))
    state = replace(state, epoch=epoch, history=history_with_statement(state.history, statement))
    state = with_statement(state, statement.index, now)
    if state.run_state is RunState.RoundTrain and len(stored.statements) >= quorum(len(elected)):
        state = entered(state, RunState.RoundWitness, now)
    if state.run_state is RunState.RoundWitness and everybody_stated(state):
        return finish_round(state, now, seed=seed)

    return state, ()


def _refuse_unless(state: CoordinatorState, *allowed: RunState) -> None:
    if state.run_state.halted:
        raise CoordinatorError("Halted", f"the run is {state.run_state.name}")
    if state.run_state not in allowed:
        expected = " or ".join(phase.name for phase in allowed)
        raise CoordinatorError("InvalidRunState", f"expected {expected}, the run is in {state.run_state.name}")


def _own_slot(state: CoordinatorState, sender: NodeIdentity, *, epoch: int, index: int) -> int:
    """Return the sender's slot. Raises CoordinatorError (InvalidWitness) if it has none, or for another slot or epoch."""
    if epoch != state.progress.epoch:
        raise CoordinatorError("InvalidWitness", f"this is epoch {state.progress.epoch}, the statement is about epoch {epoch}")

    slot = state.slot_of(sender)
    if slot is None or slot != index:
        own = "has no slot" if slot is None else f"has slot {slot}"
        raise CoordinatorError("InvalidWitness", f"{sender} {own} in this epoch and cannot speak for slot {index}")

    return slot


def _check_statement(
    state: CoordinatorState, current: Round, sender: NodeIdentity, statement: WitnessStatement, elected: tuple[int, ...]
) -> None:
    """Raise CoordinatorError (InvalidWitness) unless a healthy elected witness sent a well-formed statement for this round."""
    slot = _own_slot(state, sender, epoch=statement.epoch, index=statement.index)
    health = state.epoch.clients[slot].state
    if health is not ClientState.Healthy:
        raise CoordinatorError("InvalidWitness", f"slot {slot} is {health.name} and takes no part in this epoch now")

    if statement.height != current.height:
        message = f"the current round has height {current.height}, the statement has {statement.height}"
        raise CoordinatorError("InvalidWitness", message)

    if statement.index not in elected:
        raise CoordinatorError("InvalidWitness", f"slot {statement.index} is not elected to witness in round {current.height}")

    for name, expected in _LENGTHS.items():
        got = len(getattr(statement, name))
        if got != expected:
            raise CoordinatorError("InvalidWitness", f"{name} must be {expected} bytes, got {got}")

    problem = words_problem(state, statement.words)
    if problem is not None:
        raise CoordinatorError("InvalidWitness", problem)


def _claims_unassigned_slots(state: CoordinatorState, current: Round, statement: WitnessStatement) -> bool:
    """Whether a statement claims results of slots that had no share in the round it is about."""
    before = state.round_at(current.height - 1)
    assigned = shares(state, before) if before is not None else {}
    bits = int.from_bytes(statement.participants, "little")
    for slot in assigned:
        bits &= ~(1 << slot)
    return bits != 0


def _voided(state: CoordinatorState, current: Round, statement: WitnessStatement, now: int, *, seed: int) -> Outcome:
    """Count a void statement as missed duties.

    If the coordinator only rejected it, its sender could make every round wait until the timeout.
    """
    slot = statement.index
    state = with_missed(state, slot, WAITED_MISSES)
    event = StatementVoided(epoch=state.progress.epoch, height=current.height, slot=slot)
    if state.run_state is RunState.RoundWitness and everybody_stated(state):
        state, events = finish_round(state, now, seed=seed)
        return state, (event, *events)

    return state, (event,)
