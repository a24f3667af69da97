"""Journalled rounds that a state has otherwise: other statements, or another epoch or height for their step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psyche_core.client.machine.rounds.settled_rounds import decision_of, first_conflicting_step
from psyche_core.coordinator.round.witness import statements_digest
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.training.checkpoints.journal_records import AppliedRound
from psyche_core.types import RunState
from stage import Stage


def in_the_second_epoch() -> CoordinatorState:
    """A state in the third round of epoch 1."""
    world = Stage()
    world.run(until=lambda: _third_round(world.state))
    return world.state


def _third_round(state: CoordinatorState) -> bool:
    return state.run_state is RunState.RoundTrain and state.progress.epoch == 1 and state.epoch.rounds[-1].height == 2


def journal_round(epoch: int, height: int, step: int, statements: bytes = bytes(32)) -> AppliedRound:
    return AppliedRound(epoch=epoch, height=height, step=step, learning_rate=0.1, results=(), statements=statements)


def journalled(state: CoordinatorState) -> list[AppliedRound]:
    """What a client that followed this run has applied: all rounds before the two newest, from the epoch before on."""
    current = state.epoch.rounds[-1]
    first = current.step - current.height
    applied = [journal_round(0, height, first - 3 + height) for height in range(3)]
    played = state.epoch.rounds[0]
    attesting = state.round_at(played.height + 1)
    assert (played.step, played.height) == (first, 0)
    assert attesting is not None
    return [*applied, journal_round(1, 0, first, statements_digest(attesting.statements))]


def test_what_a_member_applied_is_never_otherwise() -> None:
    state = in_the_second_epoch()
    assert first_conflicting_step(state, journalled(state)) is None


def test_other_statements_are_found() -> None:
    state = in_the_second_epoch()
    *earlier, last = journalled(state)
    assert first_conflicting_step(state, [*earlier, replace(last, statements=bytes([1] * 32))]) == last.step


@pytest.mark.parametrize(
    ("which", "epoch", "height"),
    [(3, 0, 3), (3, 1, 1), (3, 2, 0), (2, 1, 2), (1, 1, 0)],
    ids=["played on in the epoch before", "at another height", "an epoch later", "in this epoch", "this epoch began earlier"],
)
def test_a_step_that_the_state_plays_elsewhere_is_found(which: int, epoch: int, height: int) -> None:
    state = in_the_second_epoch()
    rounds = journalled(state)
    rounds[which] = replace(rounds[which], epoch=epoch, height=height)
    assert first_conflicting_step(state, rounds) == rounds[which].step


@pytest.mark.parametrize("of_an_epoch", [False, True], ids=["in a journal", "of a checkpoint"])
def test_a_share_that_was_void_or_is_void_now_is_found(*, of_an_epoch: bool) -> None:
    """The statements are the same: only a proof came in one history, and not in the other."""
    state = in_the_second_epoch()
    *_, last = journalled(state)
    known = decision_of(state, last.step) if of_an_epoch else last
    assert known is not None
    slots = (0, 1, 2)
    assert first_conflicting_step(state, [replace(known, slots=slots)]) is None
    assert first_conflicting_step(state, [replace(known, slots=slots[1:], voided=(0,))]) == last.step
    played = replace(state.epoch.rounds[0], voided=(0,))
    proven = replace(state, epoch=replace(state.epoch, rounds=(played, *state.epoch.rounds[1:])))
    assert first_conflicting_step(proven, [replace(known, slots=slots)]) == last.step
    assert first_conflicting_step(proven, [replace(known, slots=slots[1:], voided=(0,))]) is None
    assert first_conflicting_step(proven, [replace(known, slots=slots[1:])]) is None, (
        "nobody applied it, and the proof came later"
    )


def test_a_decision_is_told_once_no_statement_can_be_added() -> None:
    state = in_the_second_epoch()
    *_, last = journalled(state)
    found = decision_of(state, last.step)
    assert found is not None
    assert (found.step, found.epoch, found.height, found.statements) == (last.step, 1, 0, last.statements)
    assert (found.slots, found.voided) == ((0, 1, 2), ())
    assert first_conflicting_step(state, [found]) is None
    assert first_conflicting_step(state, [replace(found, statements=bytes([1] * 32))]) == last.step
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
