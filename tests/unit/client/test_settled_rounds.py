"""Journalled rounds of another history than a state's, and what decided a step."""

from __future__ import annotations

from dataclasses import replace

from psyche_core.client.machine.rounds.settled_rounds import decision_of, first_conflicting_step
from psyche_core.coordinator.history import histories
from psyche_core.coordinator.round.witness import statements_digest
from psyche_core.coordinator.state import NO_DIGEST, CoordinatorState
from psyche_core.training.checkpoints.journal_records import AppliedRound
from psyche_core.types import Decision, RunState
from stage import Stage


def in_the_second_epoch() -> CoordinatorState:
    """A state in the third round of epoch 1."""
    world = Stage()
    world.run(until=lambda: _third_round(world.state))
    return world.state


def _third_round(state: CoordinatorState) -> bool:
    return state.run_state is RunState.RoundTrain and state.progress.epoch == 1 and state.epoch.rounds[-1].height == 2


def known_steps(state: CoordinatorState) -> list[AppliedRound]:
    """What a client that followed this run has applied, as far as the state knows its history, from the epoch's start on."""
    steps = sorted(histories(state).items())
    return [AppliedRound(epoch=1, height=0, step=step, learning_rate=0.1, results=(), history=known) for step, known in steps]


def test_what_a_member_applied_is_never_otherwise() -> None:
    state = in_the_second_epoch()
    rounds = known_steps(state)
    assert len(rounds) == 2
    assert first_conflicting_step(state, rounds) is None
    assert first_conflicting_step(state, [replace(one, history=NO_DIGEST) for one in rounds]) is None, "nothing is known of these"
    assert first_conflicting_step(state, []) is None


def test_another_history_is_found() -> None:
    state = in_the_second_epoch()
    start, last = known_steps(state)
    other = replace(last, history=bytes([1] * 32))
    assert first_conflicting_step(state, [start, other]) == last.step
    assert first_conflicting_step(state, [other]) == last.step


def test_without_a_step_that_is_known_to_be_right_any_may_be_another() -> None:
    """The state stores the rounds at which the histories parted no more."""
    state = in_the_second_epoch()
    start, last = known_steps(state)
    older = [replace(start, step=step, history=bytes([step] * 32)) for step in range(1, start.step)]
    others = [replace(start, history=bytes([1] * 32)), replace(last, history=bytes([2] * 32))]
    assert first_conflicting_step(state, [*older, *others]) == 1
    assert first_conflicting_step(state, [*older, others[0], last]) is None, "a history contains all that led to it"
    assert first_conflicting_step(state, older) is None, "the state knows nothing of these"
    later = replace(last, step=last.step + 9, history=bytes([3] * 32))
    assert first_conflicting_step(state, [*older, start, others[1], later]) == last.step


def test_a_decision_is_told_once_no_statement_can_be_added() -> None:
    state = in_the_second_epoch()
    last = known_steps(state)[-1]
    attesting = state.round_at(1)
    assert attesting is not None
    assert decision_of(state, last.step) == Decision(last.step, 1, 0, statements_digest(attesting.statements), last.history)
    assert decision_of(state, last.step + 1) is None, "its round's statements are still coming in"
    assert decision_of(state, last.step - 1) is None, "the state stores no round of the epoch before"


def test_the_last_step_of_an_epoch_is_decided_in_its_cooldown_and_in_the_next_warmup() -> None:
    world = Stage()
    world.run(until=lambda: world.state.run_state is RunState.Cooldown)
    cooldown = world.state
    step = max(played.step for played in cooldown.epoch.rounds if not played.drain)
    decision = decision_of(cooldown, step)
    assert decision is not None
    world.run(until=lambda: world.state.run_state is RunState.Warmup)
    assert world.state.progress.epoch == decision.epoch + 1
    assert decision_of(world.state, step) == decision
