"""The run goes back to a signed end or to the stored checkpoint (F18): when, to which, and what becomes of its samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from psyche_core.coordinator import apply
from psyche_core.coordinator.commands import (
    ClientsExited,
    EpochEnded,
    ModelLost,
    Pause,
    Resume,
    UpdateConfig,
    WentBack,
    Withdraw,
)
from psyche_core.coordinator.state import NO_DIGEST, UNREADY_LIMIT, EpochEnd, Progress, Unready
from psyche_core.types import BatchId, RunState, total_samples
from tests.unit.coordinator.epoch_ends import FIRST, HUB, LIMITS, OTHER, SECOND, THIRD, digest_of, ended, played, store, warming


def lack(run: Any, **held: bytes) -> list[Any]:
    """All members lack the model. held: `s0`, `s1`… -> what a slot holds instead."""
    events: list[Any] = []
    for slot in run.state.healthy_slots:
        events += run.do(run.lacking(slot, held=held.get(f"s{slot}", NO_DIGEST)))
    return events


# ---------------------------------------------------------------- going back
def test_the_run_goes_back_to_the_newest_end_that_a_member_holds(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND, THIRD))
    ends, pending = run.state.ends, run.state.pending
    events = lack(run, s0=FIRST, s2=SECOND)
    assert events == [EpochEnded(epoch=3, success=False), WentBack(from_step=6, to_step=4, from_checkpoint=False)]
    state = run.state
    assert (state.progress, state.generation) == (Progress(epoch=3, step=5, data_index=32), 1)
    assert (state.ends, state.pending, state.unready) == (ends[:2], pending, ())
    assert not state.from_checkpoint
    assert run.phase == "WaitingForMembers"
    run.refused(run.end_digest(0, OTHER), "InvalidRunState")
    warming(run)
    run.refused(run.ready(0, digest=THIRD), "InvalidWitness")
    for slot in range(4):
        run.do(run.ready(slot, digest=SECOND))
    assert (run.round.step, run.round.batches) == (5, (BatchId(32, 39),))
    run.play_signed_epoch(OTHER)
    assert [end.digest for end in run.state.ends] == [FIRST, SECOND, OTHER]


def test_before_the_run_goes_back_it_asks_those_who_joined_meanwhile(play: Any, members: Any, joins: Any) -> None:
    """One of them may hold what the warmup's members lack. Strangers who join in each warmup hold it up twice."""
    run = warming(ended(play, FIRST, SECOND))
    for times in (1, 2):
        run.do(joins(members(3 + times)))
        assert lack(run, s0=FIRST) == [EpochEnded(epoch=2, success=False)]
        assert (run.phase, run.state.epoch.repeats, run.state.generation) == ("WaitingForMembers", times, 0)
        warming(run)
        assert len(run.state.epoch.clients) == 4 + times
    run.do(joins(members(6)))
    assert lack(run, s0=FIRST)[-1] == WentBack(from_step=4, to_step=2, from_checkpoint=False)
    assert run.state.epoch.repeats == 0


def test_who_joined_meanwhile_and_holds_the_model_saves_it(play: Any, members: Any, joins: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    run.do(joins(members(4)))
    lack(run, s0=FIRST)
    warming(run)
    run.do(run.ready(4, digest=SECOND))
    for slot in range(4):
        run.do(run.lacking(slot, held=FIRST))
    assert run.phase == "Warmup", "who holds it can give it to the others"
    for slot in range(4):
        run.do(run.ready(slot, digest=SECOND))
    assert (run.phase, run.round.step, run.state.epoch.repeats) == ("RoundTrain", 5, 0)


def test_who_joined_and_left_again_is_not_waited_for(play: Any, members: Any, joins: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    run.do(joins(members(4)))
    run.do(Withdraw(members(4)))
    assert lack(run, s0=FIRST)[-1] == WentBack(from_step=4, to_step=2, from_checkpoint=False)


def test_a_lost_model_is_told_when_those_who_joined_meanwhile_lack_it_too(play: Any, members: Any, joins: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    run.do(joins(members(4)))
    lack(run)
    warming(run)
    assert lack(run) == [EpochEnded(epoch=2, success=False), ModelLost(step=4)]
    assert (run.phase, run.state.epoch.repeats) == ("Paused", 0)


def test_the_queue_of_then_is_assigned_again(play: Any) -> None:
    """With it the samples that are trained afterwards are those of the history that is gone on with."""
    run = play(4, **LIMITS)
    run.play_round()
    run.play_round(seen=[0, 1])
    run.play_round()
    run.sign_end(FIRST)
    run.cool_down()
    queue = run.state.requeue
    assert queue
    run.warm_up()
    run.play_signed_epoch(SECOND)
    assert run.state.requeue == ()
    warming(run)
    lack(run, s0=FIRST)
    assert (run.state.requeue, run.state.progress.data_index) == (queue, 16)


def test_samples_that_were_lost_since_are_no_longer(play: Any) -> None:
    run = ended(play, FIRST)
    queue = tuple(BatchId(4 * place, 4 * place) for place in range(3))
    end = replace(run.state.ends[0], lost=5)
    run.applied = [BatchId(1, 3), BatchId(5, 7), BatchId(9, 10)]
    run.state = replace(run.state, requeue=queue, lost_samples=5, ends=(replace(end, queue=queue),))
    run.applied_by[replace(end, queue=queue, digest=NO_DIGEST)] = list(run.applied)
    run.warm_up()
    run.state = replace(run.state, lost_samples=9, progress=replace(run.state.progress, data_index=25))
    run.play_signed_epoch(SECOND)
    warming(run)
    lack(run, s0=FIRST)
    assert (run.state.lost_samples, run.state.progress.data_index, run.state.requeue) == (5, 16, queue)


def test_intervals_that_an_end_has_no_room_for_are_lost_with_a_return(play: Any) -> None:
    run = play(4, **LIMITS)
    run.play_epoch()
    queue = tuple(BatchId(2 * place, 2 * place) for place in range(70))
    run.applied = [BatchId(2 * place + 1, 2 * place + 1) for place in range(70)]
    run.state = replace(run.state, requeue=queue, progress=replace(run.state.progress, data_index=140))
    run.sign_end(FIRST)
    assert run.state.ends[-1] == EpochEnd(2, 140, FIRST, queue[-64:], lost=6, history=run.state.history)
    assert (run.state.requeue, run.state.lost_samples) == (queue, 0)
    run.cool_down()
    run.warm_up()
    run.play_signed_epoch(SECOND)
    warming(run)
    lack(run, s1=FIRST)
    assert (run.state.requeue, run.state.lost_samples) == (queue[-64:], 6)


@pytest.mark.parametrize("short", [1, 2])
def test_fewer_than_a_quorum_turn_nothing_back(play: Any, short: int) -> None:
    run = warming(ended(play, FIRST, SECOND))
    lacking = tuple(range(4 - short, 4))
    for slot in lacking:
        run.do(run.lacking(slot, held=FIRST))
    for slot in range(4 - short):
        run.do(run.ready(slot))
    assert run.phase == "Warmup"
    assert run.tick(after=20)[0] == ClientsExited(epoch=2, slots=lacking)
    assert (run.round.step, run.state.generation) == (5, 0)
    late = {entry.signer: entry.score for entry in run.state.unready}
    assert late == {run.state.epoch.clients[slot].id.signer: 2 for slot in lacking}, "the others had it"


def test_a_liar_turns_nothing_back_while_the_others_load(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    run.do(run.lacking(3, held=FIRST))
    run.tick(after=19)
    assert run.phase == "Warmup"
    run.tick(after=1)
    assert run.phase == "WaitingForMembers"
    assert (run.state.progress.step, run.state.generation) == (5, 0)


def test_who_claims_an_end_it_does_not_hold_costs_one_more_return(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND, THIRD))
    assert lack(run, s0=FIRST, s3=SECOND)[-1] == WentBack(from_step=6, to_step=4, from_checkpoint=False)
    warming(run)
    assert lack(run, s0=FIRST)[-1] == WentBack(from_step=4, to_step=2, from_checkpoint=False)
    run.warm_up()
    assert (run.round.step, run.state.generation) == (3, 2)


def test_at_the_time_out_those_who_spoke_decide_the_second_time(play: Any) -> None:
    """After a cut network what the one says that holds something may come just after the warmup is over."""
    run = warming(ended(play, FIRST, SECOND))
    for last in ([EpochEnded(epoch=2, success=False)], [WentBack(from_step=4, to_step=2, from_checkpoint=False)]):
        for slot in (0, 1):
            run.do(run.lacking(slot, held=FIRST))
        run.do(run.ready(2))
        assert run.tick(after=20)[-1:] == last
        assert run.state.unready == ()
        if run.state.generation == 0:
            assert run.state.epoch.repeats == 1
            warming(run)


def test_who_was_silent_in_the_first_warmup_and_holds_a_signed_model_saves_it(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    for slot in (0, 1, 2):
        run.do(run.lacking(slot))
    run.tick(after=20)
    warming(run)
    for slot in (0, 1, 2):
        run.do(run.lacking(slot))
    assert run.do(run.lacking(3, held=FIRST))[-1] == WentBack(from_step=4, to_step=2, from_checkpoint=False)


def test_who_is_not_waited_for_does_not_begin_a_warmup_again(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    silent = run.state.epoch.clients[3].id.signer
    run.state = replace(run.state, unready=(Unready(silent, UNREADY_LIMIT),))
    for slot in (0, 1, 2):
        run.do(run.lacking(slot, held=FIRST))
    assert (run.phase, run.state.generation) == ("WaitingForMembers", 1)


def test_who_left_has_no_say(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    for slot in (0, 1, 2):
        run.do(run.lacking(slot, held=FIRST))
    run.withdraw(0)
    run.withdraw(1)
    run.do(run.ready(3))
    assert (run.phase, run.state.generation) == ("Warmup", 0)


# ---------------------------------------------------------------- nobody holds any
def test_a_lost_model_is_the_owner_s_decision(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    assert lack(run) == [EpochEnded(epoch=2, success=False), ModelLost(step=4)]
    assert (run.phase, run.state.model_lost, run.state.progress.step) == ("Paused", True, 5)
    assert run.do(Resume(from_checkpoint=True)) == [WentBack(from_step=4, to_step=0, from_checkpoint=True)]
    state = run.state
    assert (state.progress, state.generation) == (Progress(epoch=2), 1)
    assert (state.ends, state.from_checkpoint, state.model_lost) == ((), True, False)
    run.warm_up()
    assert run.round.batches == (BatchId(0, 7),)


def test_the_owner_may_ask_the_members_once_more(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    lack(run)
    assert run.do(Resume()) == []
    assert (run.phase, run.state.model_lost, run.state.generation) == ("WaitingForMembers", False, 0)
    run.warm_up()
    assert run.round.step == 5


def test_the_configuration_may_decide_for_the_owner(play: Any) -> None:
    run = play(4, **LIMITS, restart_from_checkpoint=True)
    run.play_epoch()
    run.sign_end(FIRST)
    store(run)
    run.cool_down()
    run.warm_up()
    run.play_signed_epoch(SECOND)
    warming(run)
    assert lack(run)[-1] == WentBack(from_step=4, to_step=2, from_checkpoint=True)
    assert (run.state.progress.step, run.state.from_checkpoint) == (3, True)
    assert [end.digest for end in run.state.ends] == [FIRST]
    run.tick(after=3)
    assert run.state.model.LLM.checkpoint == HUB


def test_an_end_that_is_held_comes_before_the_stored_checkpoint(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND, restart_from_checkpoint=True))
    assert lack(run, s3=FIRST)[-1] == WentBack(from_step=4, to_step=2, from_checkpoint=False)


def test_there_is_no_way_back_from_the_stored_checkpoint(play: Any) -> None:
    run = play(0, **LIMITS)
    run.join(0, 1, 2, 3)
    warming(run)
    lack(run)
    assert run.phase == "Warmup"
    run.tick(after=20)
    assert (run.phase, run.state.generation, run.state.model_lost) == ("WaitingForMembers", 0, False)


@pytest.mark.parametrize("phase", [RunState.Paused, RunState.Uninitialized])
def test_the_owner_cannot_go_back_while_members_may_hold_the_model(play: Any, phase: RunState) -> None:
    run = ended(play, FIRST)
    run.state = replace(run.state, run_state=phase)
    run.refused(Resume(from_checkpoint=True), "CannotResume")


@pytest.mark.parametrize("step", [1, 2, 3])
def test_the_run_goes_back_to_the_newest_signed_step_that_a_member_holds(play: Any, step: int) -> None:
    run = played(play)
    assigned = run.state.progress.data_index
    assert lack(run, s1=digest_of(step), s2=digest_of(1))[-1] == WentBack(from_step=4, to_step=step, from_checkpoint=False)
    assert run.state.progress == Progress(epoch=1, step=step + 1, data_index=assigned)
    assert total_samples(run.state.requeue) == 8 * (4 - step)
    assert [(end.step, end.digest) for end in run.state.ends] == [(at, digest_of(at)) for at in range(1, step + 1)]
    run.tick(after=3)
    run.refused(run.ready(0, digest=OTHER), "InvalidWitness")
    for slot in run.state.healthy_slots:
        run.do(run.ready(slot))
    assert run.phase == "RoundTrain"


def test_samples_that_waited_already_wait_once(play: Any) -> None:
    """Of the third step only two shares were accepted: the others waited before the run went back."""
    run = played(play, seen=(0, 1))
    assert total_samples(run.state.requeue) == 4
    lack(run, s0=digest_of(2))
    assert run.state.progress.step == 3
    assert total_samples(run.state.requeue) == 16


def test_of_a_step_that_nobody_holds_any_more_an_earlier_one_is_taken(play: Any) -> None:
    """Who claims what it does not have costs one more warmup."""
    run = played(play)
    lack(run, s0=digest_of(3))
    warming(run)
    assert lack(run, s1=digest_of(1))[-1] == WentBack(from_step=3, to_step=1, from_checkpoint=False)
    assert total_samples(run.state.requeue) == 24


# ---------------------------------------------------------------- where the owner wants it to go on
def owner_s(run: Any, progress: Progress) -> tuple[Any, Any]:
    """The state before and after the owner set the progress. Not with `Play.do`: the books of samples are the owner's then."""
    run.do(Pause())
    before = replace(run.state, model_lost=True, requeue=(BatchId(0, 1),), lost_samples=3)
    after, events = apply(before, UpdateConfig(progress=progress), run.now, 1)
    assert events == ()
    return before, after


def test_the_owner_goes_on_from_a_signed_end_with_the_members_model(play: Any) -> None:
    run = ended(play, FIRST, SECOND)
    before, after = owner_s(run, Progress(epoch=2, step=3, data_index=16))
    assert [end.digest for end in after.ends] == [FIRST]
    assert (after.from_checkpoint, after.stored) == (False, before.stored)
    assert (after.generation, after.model_lost, after.requeue) == (1, False, ())
    assert after.history == after.ends[-1].history != before.history


def test_the_owner_goes_on_elsewhere_with_the_stored_checkpoint(play: Any) -> None:
    run = ended(play, FIRST, SECOND)
    before, after = owner_s(run, Progress(epoch=2, step=4, data_index=24))
    assert [end.digest for end in after.ends] == [FIRST]
    assert after.from_checkpoint
    assert after.stored == EpochEnd(3, 24, NO_DIGEST, (), lost=3, history=after.history)
    assert after.history not in (before.history, *(end.history for end in before.ends))
    assert (after.generation, after.model_lost, after.epoch.rounds) == (1, False, ())
