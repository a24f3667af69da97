"""Pause and resume in every state, and what follows: nothing trained is lost, nobody is sent away, nobody is paid twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from psyche_core.coordinator.commands import (
    CooldownStarted,
    EpochEnded,
    EpochStarted,
    Pause,
    Resume,
    RewardsShared,
    RunFinished,
    SetFutureEpochRates,
    Tick,
    UpdateConfig,
)
from psyche_core.coordinator.state import EndReason
from psyche_core.types import RunState


def test_pause_while_waiting_keeps_who_is_pending(play: Any, members: Any) -> None:
    run = play(init_min_clients=2, min_clients=2)
    run.join(0)
    assert run.do(Pause()) == []
    assert run.phase == "Paused"
    run.refused(Tick(), "Halted")
    run.join(1)
    assert list(run.state.pending) == [members(0), members(1)]
    assert run.do(Resume(), after=1000) == []
    assert run.tick(after=2) == []
    assert run.tick(after=1) == [EpochStarted(epoch=0, clients=2)]


def test_pause_in_warmup_gives_the_epoch_up_and_pays_nobody(play: Any) -> None:
    run = play()
    run.do(SetFutureEpochRates(earning_total_shared=100))
    run.join(0, 1)
    run.tick(after=3)
    run.do(run.ready(0))
    assert run.do(Pause()) == [EpochEnded(epoch=0, success=False)]
    assert (run.phase, run.state.accounts, run.state.progress.epoch) == ("Paused", (), 0)
    assert len(run.state.pending) == 2


@pytest.mark.parametrize("phase", ["RoundTrain", "RoundWitness"])
def test_pause_in_a_round_makes_it_the_last_trained_one(play: Any, phase: str) -> None:
    run = play(4)
    run.play_round()
    if phase == "RoundWitness":
        for slot in run.elected[:3]:
            run.do(run.statement(slot))
    assert run.phase == phase
    assert run.do(Pause()) == []
    assert run.state.pending_pause
    trained = run.round.height
    run.play_round()
    assert (run.round.height, run.round.drain, run.state.epoch.ending) == (trained + 1, True, EndReason.Pause)
    run.play_round()
    assert run.seen_events(CooldownStarted)[-1] == CooldownStarted(epoch=0, reason="Pause")
    run.cool_down()
    assert (run.phase, run.state.pending_pause, run.state.requeue) == ("Paused", False, ())


def test_pause_in_the_drain_round_is_kept_for_the_cooldowns_end(play: Any) -> None:
    run = play(3, rounds_per_epoch=2)
    run.play_round()
    run.play_round()
    assert run.round.drain
    run.do(Pause())
    assert run.state.epoch.ending is EndReason.Rounds  # the first reason stays
    run.play_round()
    assert run.cool_down() == [EpochEnded(epoch=0, success=True)]
    assert run.phase == "Paused"
    assert sum(len(batch) for batch in run.applied) == run.state.progress.data_index


def test_pause_in_the_cooldown_is_obeyed_at_its_end(play: Any) -> None:
    run = play(3, rounds_per_epoch=1)
    run.play_epoch()
    run.do(Pause())
    assert run.phase == "Cooldown"
    run.cool_down()
    assert (run.phase, run.state.epoch.cold_start) == ("Paused", True)


@pytest.mark.parametrize("again", ["RoundTrain", "Cooldown"])
def test_pausing_twice_is_once(play: Any, again: str) -> None:
    run = play(2)
    run.do(Pause())
    if again == "Cooldown":
        run.play_epoch()
    before = run.state
    assert run.do(Pause()) == []
    assert run.state == before
    if again == "RoundTrain":
        run.play_epoch()
    run.cool_down()
    run.refused(Pause(), "Halted")
    run.do(Resume())
    assert run.phase == "WaitingForMembers"
    run.refused(Resume(), "CannotResume")


def test_a_pause_that_has_not_begun_cannot_be_taken_back(play: Any) -> None:
    run = play(2)
    run.do(Pause())
    run.refused(Resume(), "CannotResume")
    run.play_epoch()
    run.refused(Resume(), "CannotResume")
    run.cool_down()
    run.do(Resume())


def test_pause_then_everybody_leaves_still_ends_in_paused(play: Any) -> None:
    run = play(2)
    run.play_round()
    run.do(Pause())
    run.withdraw(0)
    run.withdraw(1)
    run.tick(after=30)
    assert run.phase == "Cooldown"
    assert run.seen_events(CooldownStarted)[-1].reason == "Abandoned"
    run.cool_down()
    assert (run.phase, run.state.pending) == ("Paused", ())
    run.do(Resume())
    run.join(5)
    run.warm_up()
    assert run.round.batches[0].first == 0  # what was not attested to is trained again


def test_pause_then_one_leaves_and_the_others_finish_the_epoch(play: Any) -> None:
    run = play(4)
    run.play_round()
    run.do(Pause())
    run.withdraw(3)
    run.play_epoch()
    assert run.state.epoch.ending is EndReason.Pause
    run.cool_down()
    assert run.phase == "Paused"
    assert len(run.state.pending) == 3


def test_a_paused_epoch_pays(play: Any) -> None:
    run = play()
    run.do(SetFutureEpochRates(earning_total_shared=100))
    run.start(2)
    run.do(Pause())
    run.play_epoch()
    assert run.cool_down() == [RewardsShared(0, ((0, 50), (1, 50)), ()), EpochEnded(epoch=0, success=True)]


def test_the_pause_of_a_run_with_all_steps_trained_is_its_end(play: Any) -> None:
    run = play(2, total_steps=1)
    run.play_round()
    run.do(Pause())
    run.play_round()
    assert run.cool_down() == [EpochEnded(epoch=0, success=True), RunFinished(steps=1)]
    run.refused(Resume(), "CannotResume")
    run.refused(Pause(), "Halted")


def test_b17_a_run_paused_at_total_steps_resumes_into_finished(play: Any) -> None:
    """The reference reverted such a resume, so the run stayed paused for ever."""
    run = play(2, total_steps=1000)
    run.play_round()
    run.do(Pause())
    run.play_epoch()
    run.cool_down()
    assert run.state.progress.step == 3
    run.do(UpdateConfig(config=run.state.config.model_copy(update={"total_steps": 2})))
    assert run.do(Resume()) == [RunFinished(steps=2)]
    assert run.phase == "Finished"


def test_b16_the_first_resume_keeps_a_step_that_was_set(play: Any) -> None:
    """The reference set it to 1."""
    run = play()
    run.state = replace(run.state, run_state=RunState.Uninitialized, progress=replace(run.state.progress, step=7))
    run.do(Resume())
    assert (run.phase, run.state.progress.step) == ("WaitingForMembers", 7)


def test_several_pauses_lose_no_sample(play: Any) -> None:
    run = play(3, total_steps=7)
    for _ in range(3):
        run.play_round()
        run.do(Pause())
        run.play_epoch()
        run.cool_down()
        if run.phase == "Finished":
            break
        run.do(Resume(), after=50)
        run.warm_up()
    run.play_epoch()
    run.cool_down()
    assert run.phase == "Finished"
    assert run.state.progress.step == 8
    assert min(batch.first for batch in run.applied) == 0
    assert sum(len(batch) for batch in run.applied) == run.state.progress.data_index == 7 * 8
