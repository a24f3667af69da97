"""Where a run goes on is the owner's to say, while it is halted; and the ramp of batch sizes is the same number everywhere."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.coordinator import apply
from psyche_core.coordinator.commands import Pause, Resume, Tick, UpdateConfig, WarmupWitness
from psyche_core.coordinator.round.batch_size import batch_size
from psyche_core.coordinator.serialization import from_plain, to_plain
from psyche_core.coordinator.state import CoordinatorState, EpochEnd, Progress
from psyche_core.errors import CoordinatorError
from psyche_core.types import BatchId, RunState

BACK = Progress(epoch=1, step=7, data_index=48)


def halted(play: Any, **config: Any) -> CoordinatorState:
    state: CoordinatorState = play(0, **config).state
    return replace(state, run_state=RunState.Paused, requeue=(BatchId(3, 5),), progress=Progress(4, 90, 720), lost_samples=2)


def refusal(state: CoordinatorState, command: UpdateConfig) -> str:
    with pytest.raises(CoordinatorError) as caught:
        apply(state, command, 5000, 1)
    return caught.value.name


def test_a_run_goes_on_where_its_owner_says(play: Any, members: Any, joins: Any) -> None:
    """The samples to be assigned again belong to the history that is left; what was lost stays counted."""
    state, _ = apply(halted(play), UpdateConfig(progress=BACK), 5000, 1)
    assert (state.progress, state.requeue, state.lost_samples) == (BACK, (), 2)
    assert from_plain(to_plain(state)) == state
    for command, now in (
        (Resume(), 5001),
        (joins(members(0)), 5001),
        (Tick(), 5005),
        (WarmupWitness(members(0), 1, 0, b"\1" * 32), 5006),
    ):
        state, _ = apply(state, command, now, 9)
    assert state.run_state is RunState.RoundTrain
    assert state.current_round is not None
    assert (state.current_round.step, state.current_round.batches[0].first, state.epoch.start_step) == (7, 48, 7)


def test_without_progress_nothing_of_it_changes(play: Any) -> None:
    state = halted(play)
    assert apply(state, UpdateConfig(config=state.config), 5000, 1)[0] == state


def test_the_step_after_the_last_one_finishes_the_run(play: Any) -> None:
    state, _ = apply(halted(play, total_steps=10), UpdateConfig(progress=replace(BACK, step=11)), 5000, 1)
    state, _ = apply(state, Resume(), 5001, 1)
    assert state.run_state is RunState.Finished


@pytest.mark.parametrize(
    "progress",
    [
        replace(BACK, step=0),
        replace(BACK, step=12),
        replace(BACK, step=True),
        replace(BACK, data_index=-1),
        replace(BACK, data_index=2**62 + 1),
        replace(BACK, epoch=2**31 + 1),
        replace(BACK, epoch=1.0),  # type: ignore[arg-type]
    ],
)
def test_progress_out_of_range_is_refused(play: Any, progress: Progress) -> None:
    assert refusal(halted(play, total_steps=10), UpdateConfig(progress=progress)) == "ProgressSanityCheckFailed"


def test_it_is_judged_by_the_configuration_that_comes_with_it(play: Any) -> None:
    state = halted(play, total_steps=10)
    longer = state.config.model_copy(update={"total_steps": 100})
    beyond = replace(BACK, step=50)
    assert refusal(state, UpdateConfig(progress=beyond)) == "ProgressSanityCheckFailed"
    assert apply(state, UpdateConfig(config=longer, progress=beyond), 5000, 1)[0].progress == beyond
    broken = state.config.model_copy(update={"total_steps": 0})
    assert refusal(state, UpdateConfig(config=broken, progress=replace(BACK, step=0))) == "ConfigSanityCheckFailed"


def test_the_stored_model_is_never_of_a_later_step_than_the_run(play: Any) -> None:
    """A run that its owner moves back to a signed step goes on there, also where no member has the model of that step."""
    end, later = EpochEnd(step=6, data_index=40, digest=b"\6" * 32), EpochEnd(step=10, data_index=64, digest=b"\7" * 32)
    state = replace(halted(play), ends=(end, later), stored=later)
    moved, _ = apply(state, UpdateConfig(progress=BACK), 5000, 1)
    assert (moved.ends, moved.from_checkpoint) == ((end,), False)
    assert (moved.stored.step, moved.stored.data_index, moved.stored.lost) == (6, BACK.data_index, 2)
    lost = replace(moved, model_lost=True)
    again, _ = apply(lost, Resume(from_checkpoint=True), 5001, 1)
    assert (again.progress.step, again.progress.data_index) == (7, BACK.data_index)
    earlier = replace(end, step=3)
    assert apply(replace(state, stored=earlier), UpdateConfig(progress=BACK), 5000, 1)[0].stored == earlier


def test_no_run_in_motion_is_moved(play: Any) -> None:
    waiting = play(0).state
    assert refusal(waiting, UpdateConfig(progress=BACK)) == "UpdateConfigNotHalted"
    paused, _ = apply(waiting, Pause(), 5000, 1)
    assert apply(paused, UpdateConfig(progress=BACK), 5001, 1)[0].progress == BACK
    assert refusal(replace(paused, run_state=RunState.Finished), UpdateConfig(progress=BACK)) == "UpdateConfigFinished"


@given(
    tokens=st.integers(0, 2**95), start=st.integers(1, 2**16 - 1), rise=st.integers(0, 2**16 - 2), ramp=st.integers(0, 2**64 - 1)
)
def test_the_ramp_is_exact(tokens: int, start: int, rise: int, ramp: int) -> None:
    """Floating-point numbers would be right nearly always, and nearly is what two implementations must not be."""
    end = min(start + rise, 2**16 - 1)
    size = batch_size(tokens, start=start, end=end, warmup_tokens=ramp)
    if tokens >= ramp:
        assert size == end
    else:
        exact = start + Fraction((end - start) * tokens, ramp)
        assert -Fraction(1, 2) < size - exact <= Fraction(1, 2)
