"""Journalled rounds that a state has otherwise: other statements, or another epoch or height for their step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psyche_core.client.machine.rounds.settled_rounds import first_conflicting_step
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
