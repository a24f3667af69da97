"""Whole epochs in virtual time: the phases, how they end, who takes part."""

from __future__ import annotations

from typing import Any

import pytest

from psyche_core.config.run_config import ModelConfig, from_plain, to_plain
from psyche_core.coordinator import apply, commands
from psyche_core.coordinator.commands import (
    ClientsExited,
    CooldownStarted,
    EpochEnded,
    EpochStarted,
    Pause,
    Resume,
    RoundSettled,
    RoundStarted,
    RunFinished,
    Tick,
    UpdateConfig,
)
from psyche_core.coordinator.learning_rate import cold_start_bounds
from psyche_core.coordinator.round.witness import accepted_slots
from psyche_core.coordinator.state import EndReason
from psyche_core.types import ClientState, NodeIdentity, RunState


def test_one_client_from_waiting_to_the_next_epoch(play: Any) -> None:
    """The phases one after the other, with their seconds and events."""
    run = play(rounds_per_epoch=2)
    run.join(0)
    assert run.tick(after=2) == []
    assert run.tick(after=1) == [EpochStarted(epoch=0, clients=1)]
    assert (run.state.run_state, run.state.since) == (RunState.Warmup, 1003)
    assert run.do(run.ready(0), after=4) == [RoundStarted(epoch=0, height=0, step=1, drain=False)]
    assert run.play_round() == [RoundStarted(epoch=0, height=1, step=2, drain=False)]
    assert run.play_round() == [
        RoundSettled(epoch=0, height=0, step=1, accepted=(0,), refused=()),
        RoundStarted(epoch=0, height=2, step=3, drain=True),
    ]
    assert run.state.epoch.ending is EndReason.Rounds
    assert run.play_round() == [
        RoundSettled(epoch=0, height=1, step=2, accepted=(0,), refused=()),
        CooldownStarted(epoch=0, reason="Rounds"),
    ]
    assert run.tick(after=4) == []
    assert run.tick(after=1) == [EpochEnded(epoch=0, success=True)]
    assert run.phase == "WaitingForMembers"
    assert run.tick(after=3) == [EpochStarted(epoch=1, clients=1)]
    assert run.state.progress.step == run.state.epoch.start_step == 3
    assert run.state.progress.data_index == 16


def test_rounds_without_quick_witnesses_take_their_full_time(play: Any) -> None:
    run = play(3)
    run.do(run.statement(run.elected[0]))
    assert run.tick(after=29) == []
    assert run.phase == "RoundTrain"
    run.tick(after=1)
    assert run.phase == "RoundWitness"
    run.do(run.statement(run.elected[1]), after=10)
    assert run.phase == "RoundWitness"
    assert run.tick(after=1) == [RoundStarted(epoch=0, height=1, step=2, drain=False)]


def test_a_quorum_ends_round_train_at_once(play: Any) -> None:
    run = play(4)
    for count, slot in enumerate(run.elected[:3], start=1):
        assert run.phase == "RoundTrain"
        run.do(run.statement(slot), after=1)
        assert len(run.round.statements) == count
    assert (run.state.run_state, run.round.height) == (RunState.RoundWitness, 0)
    assert run.state.since == run.now


def test_f15_round_witness_ends_when_every_healthy_elected_witness_has_stated(play: Any) -> None:
    run = play(4)
    for slot in run.elected[:3]:
        run.do(run.statement(slot))
    run.withdraw(run.elected[3])
    assert run.tick(after=1) == [RoundStarted(epoch=0, height=1, step=2, drain=False)]
    for slot in run.elected:
        run.do(run.statement(slot))
    assert run.round.height == 2


def test_a_tick_that_changes_nothing_returns_the_same_state(play: Any) -> None:
    run = play(2)
    assert apply(run.state, Tick(), run.now + 1, 5) == (run.state, ())
    assert apply(run.state, Tick(), run.now + 1, 5)[0] is run.state


def test_time_that_runs_backwards_is_never_due(play: Any) -> None:
    run = play(2)
    assert apply(run.state, Tick(), 0, 5) == (run.state, ())


@pytest.mark.parametrize(
    ("config", "act", "reason"),
    [
        ({"epoch_time": 40}, lambda run: setattr(run, "now", run.now + 40), EndReason.EpochTime),
        ({"total_steps": 3}, lambda run: None, EndReason.TotalSteps),
        ({"min_clients": 3, "init_min_clients": 3}, lambda run: run.withdraw(0), EndReason.TooFewClients),
        ({}, lambda run: run.do(Pause()), EndReason.Pause),
        ({"rounds_per_epoch": 3}, lambda run: None, EndReason.Rounds),
    ],
)
def test_f1_every_ending_plays_one_drain_round_and_loses_nothing(play: Any, config: Any, act: Any, reason: EndReason) -> None:
    run = play(3, **config)
    run.play_round()
    run.play_round()
    act(run)
    run.play_round()
    if run.phase != "RoundTrain" or not run.round.drain:
        run.tick(after=run.state.config.max_round_train_time)  # the withdrawn witness leaves the others a quorum short of all
    assert run.round.drain
    assert run.round.batches == ()
    assert run.state.epoch.ending is reason
    run.play_round()
    assert run.phase == "Cooldown"
    assert run.seen_events(CooldownStarted) == [CooldownStarted(epoch=0, reason=reason.name)]
    assert [event.step for event in run.seen_events(RoundSettled)] == [1, 2, 3]
    assert run.state.progress.step == 4
    assert run.state.requeue == ()
    assert sum(len(batch) for batch in run.applied) == run.state.progress.data_index == 24


def test_f1_a_missed_quorum_drains_too(play: Any) -> None:
    run = play(4)
    run.play_round()
    run.do(run.statement(run.elected[0]))
    run.tick(after=30)
    run.tick(after=11)
    assert run.state.epoch.ending is EndReason.MissedQuorum
    assert run.round.drain
    run.play_round()
    assert run.phase == "Cooldown"
    settled = run.seen_events(RoundSettled)
    assert [event.accepted for event in settled] == [(), (0, 1, 2, 3)]
    assert [(batch.first, batch.last) for batch in run.state.requeue] == [(0, 7)]


def test_f1_the_statements_of_the_drain_round_stay_for_the_cooldown(play: Any) -> None:
    run = play(3, rounds_per_epoch=2)
    for _ in range(3):
        run.play_round()
    assert run.phase == "Cooldown"
    last_trained = run.state.epoch.rounds[-2]
    assert run.round.drain
    assert accepted_slots(run.state, last_trained) == {0, 1, 2}


def test_an_epoch_without_statements_is_cut_and_its_samples_come_back(play: Any) -> None:
    run = play(2)
    run.play_round()
    run.tick(after=30)
    events = run.tick(after=11)
    assert events[-1] == CooldownStarted(epoch=0, reason="Abandoned")
    assert run.phase == "Cooldown"
    assert run.state.healthy_slots == (0, 1)
    assert run.state.progress.step == 2  # round 0 was attested to, round 1 by nobody
    assert [(batch.first, batch.last) for batch in run.state.requeue] == [(0, 15)]


def test_an_epoch_without_healthy_clients_is_cut(play: Any) -> None:
    run = play(2)
    run.play_round()
    run.do(run.statement(run.elected[0]))
    run.withdraw(0)
    run.withdraw(1)
    run.tick(after=30)
    assert run.phase == "Cooldown"
    assert run.seen_events(CooldownStarted)[-1].reason == "Abandoned"
    assert run.cool_down() == [EpochEnded(epoch=0, success=True)]
    assert run.state.pending == ()


def test_f3_total_steps_ends_in_finished(play: Any) -> None:
    run = play(3, total_steps=2)
    for _ in range(3):
        run.play_round()
    assert run.cool_down() == [EpochEnded(epoch=0, success=True), RunFinished(steps=2)]
    assert run.phase == "Finished"
    assert run.state.progress.step == 3
    run.refused(Tick(), "Halted")


def test_pause_in_training_waits_for_drain_and_cooldown_and_starts_cold_from_its_members(play: Any, members: Any) -> None:
    run = play(2)
    run.play_round()
    run.do(Pause())
    run.do(Pause())
    assert run.phase == "RoundTrain"
    run.play_round()
    run.play_round()
    assert run.cool_down() == [EpochEnded(epoch=0, success=True)]
    assert run.phase == "Paused"
    assert run.state.model.LLM.checkpoint.name == "P2P"
    assert not run.state.pending_pause
    model = run.state.model.model_copy(update={"LLM": run.state.model.LLM.model_copy(update={"cold_start_warmup_steps": 5})})
    run.do(UpdateConfig(model=model))
    run.do(Resume(), after=1000)
    assert run.phase == "WaitingForMembers"
    run.warm_up()
    assert run.state.epoch.cold_start
    assert run.state.model.LLM.checkpoint.name == "P2P"  # they still hold it, so nothing is lost
    assert cold_start_bounds(run.state) == (3, 8)
    assert (run.state.progress.epoch, run.round.step, run.round.batches[0].first) == (1, 3, 16)


def test_a_model_whose_tables_no_image_can_carry_is_refused(play: Any) -> None:
    run = play(rounds_per_epoch=1)
    run.do(Pause())
    assert run.phase == "Paused"
    urls = {"Http": {"location": {"Urls": [f"https://example.com/{number:08}.bin" for number in range(100)]}}}
    plain = to_plain(run.state.model)
    plain["LLM"]["data_location"] = urls
    run.refused(UpdateConfig(model=from_plain(ModelConfig, plain)), "ModelSanityCheckFailed")
    plain["LLM"]["data_location"]["Http"]["location"]["Urls"] = ["https://example.com/0.bin"]
    run.do(UpdateConfig(model=from_plain(ModelConfig, plain)))


def test_a_normal_epoch_end_clears_the_cold_start(play: Any) -> None:
    run = play(rounds_per_epoch=1)
    run.do(Pause())
    assert run.phase == "Paused"
    run.do(Resume())
    run.join(0)
    run.warm_up()
    assert run.state.epoch.cold_start
    run.play_round()
    run.play_round()
    run.cool_down()
    assert not run.warm_up().state.epoch.cold_start
    assert cold_start_bounds(run.state) is None


def test_pause_in_warmup_is_immediate(play: Any) -> None:
    run = play()
    run.join(0, 1)
    run.tick(after=3)
    assert run.do(Pause()) == [EpochEnded(epoch=0, success=False)]
    assert run.phase == "Paused"
    run.do(Resume())
    run.warm_up()
    assert run.state.progress.step == 1


def test_f13_extra_time_runs_from_reaching_the_minimum(play: Any, members: Any) -> None:
    run = play(init_min_clients=2, min_clients=2)
    run.join(0)
    run.tick(after=500)
    run.join(1)
    assert run.tick(after=2) == []
    run.do(commands.Withdraw(members(0)))
    assert run.tick(after=50) == []
    run.join(2)
    assert run.tick(after=2) == []
    assert run.tick(after=1) == [EpochStarted(epoch=0, clients=2)]


def test_f13_members_of_the_last_epoch_wait_the_extra_time_again(play: Any) -> None:
    run = play(2, rounds_per_epoch=1)
    run.play_round()
    run.play_round()
    run.cool_down()
    assert run.tick(after=2) == []
    assert run.tick(after=1) == [EpochStarted(epoch=1, clients=2)]


def test_warmup_ends_early_only_when_every_healthy_client_is_ready(play: Any) -> None:
    run = play()
    run.join(0, 1, 2)
    run.tick(after=3)
    run.do(run.ready(2))
    run.do(run.ready(0))
    assert run.phase == "Warmup"
    assert run.state.epoch.ready == (0, 2)
    run.withdraw(1)
    assert run.tick(after=1) == [RoundStarted(epoch=0, height=0, step=1, drain=False)]
    assert run.round.slots == (0, 2)


def test_f10_the_warmup_time_out_drops_who_is_not_ready_and_starts_with_the_others(play: Any, members: Any) -> None:
    run = play(init_min_clients=3)
    run.join(0, 1, 2)
    run.tick(after=3)
    run.do(run.ready(0))
    run.do(run.ready(2))
    assert run.tick(after=19) == []
    assert run.tick(after=1) == [
        ClientsExited(epoch=0, slots=(1,)),
        RoundStarted(epoch=0, height=0, step=1, drain=False),
    ]
    assert run.round.slots == (0, 2)
    assert run.state.epoch.clients[1].state is ClientState.Dropped
    assert list(run.state.pending) == [members(0), members(2)]
    assert run.do(run.ready(0)) == []  # healthy already, changes nothing


def test_f10_a_warmup_in_which_too_few_become_ready_is_given_up(play: Any, members: Any) -> None:
    run = play(init_min_clients=3, min_clients=2)
    run.join(0, 1, 2)
    run.tick(after=3)
    run.do(run.ready(1))
    assert run.tick(after=20) == [ClientsExited(epoch=0, slots=(0, 2)), EpochEnded(epoch=0, success=False)]
    assert run.phase == "WaitingForMembers"
    assert list(run.state.pending) == [members(1)]
    assert (run.state.progress.step, run.state.progress.data_index) == (1, 0)
    run.join(0, 2)
    run.warm_up()
    assert [client.id for client in run.state.epoch.clients] == [members(1), members(0), members(2)]


def test_warmup_below_the_minimum_is_given_up_without_using_anything(play: Any) -> None:
    run = play(init_min_clients=2, min_clients=2)
    run.join(0, 1)
    run.tick(after=3)
    run.withdraw(0)
    assert run.tick() == [EpochEnded(epoch=0, success=False)]
    assert run.phase == "WaitingForMembers"
    assert (run.state.progress.epoch, run.state.progress.step, run.state.progress.data_index) == (0, 1, 0)
    assert len(run.state.pending) == 1


def test_f4_slots_never_move(play: Any, members: Any) -> None:
    run = play(5)
    identities = [client.id for client in run.state.epoch.clients]
    run.play_round()
    assert run.withdraw(1) == [ClientsExited(epoch=0, slots=(1,))]
    assert run.state.epoch.clients[1].state is ClientState.Withdrawn
    assert run.state.epoch.clients[1].exited_height == 1
    run.join(9)
    run.play_round()
    if run.round.height == 1:
        run.tick(after=30)
    assert run.round.slots == (0, 2, 3, 4)
    assert [client.id for client in run.state.epoch.clients] == identities
    assert set(run.shares(2)) == {0, 2, 3, 4}
    assert set(run.elected) == {0, 2, 3, 4}


def test_who_left_must_join_again_and_keeps_no_place_in_the_epoch(play: Any, members: Any) -> None:
    run = play(3, rounds_per_epoch=2)
    run.withdraw(0)
    assert list(run.state.pending) == [members(1), members(2)]
    run.join(0)
    run.join(0)
    assert list(run.state.pending) == [members(1), members(2), members(0)]
    while run.phase != "Cooldown":
        run.play_round()
        if run.phase == "RoundWitness":
            run.tick(after=11)
    run.cool_down()
    run.warm_up()
    assert [client.id for client in run.state.epoch.clients] == [members(1), members(2), members(0)]


def test_joining_again_renews_the_transport_key(play: Any, members: Any, joins: Any) -> None:
    run = play()
    run.join(0, 1)
    renewed = NodeIdentity(signer=members(0).signer, p2p=members(500).p2p)
    run.do(joins(renewed))
    assert list(run.state.pending) == [renewed, members(1)]


def test_checkpoint_kind_follows_who_is_left(play: Any, members: Any) -> None:
    run = play(2, rounds_per_epoch=1)
    assert run.state.model.LLM.checkpoint.name == "Hub"
    run.play_round()
    run.play_round()
    run.cool_down()
    assert run.state.model.LLM.checkpoint.name == "P2P"
    run.do(commands.Withdraw(members(0)))
    run.join(5)
    run.warm_up()
    assert run.state.model.LLM.checkpoint.name == "P2P"  # member 1 is still here
    run.play_round()
    run.play_round()
    run.cool_down()
    run.do(commands.Withdraw(members(1)))
    run.do(commands.Withdraw(members(5)))
    run.join(6)
    run.warm_up()
    assert run.state.model.LLM.checkpoint.name == "Hub"
    assert run.state.model.LLM.checkpoint.settings == {"repo_id": "owner/model"}


def test_f12_accepted_rounds_are_counted(play: Any) -> None:
    run = play(3, rounds_per_epoch=3)
    run.play_round()
    run.play_round(seen=[0, 2])
    run.play_round()
    run.play_round()
    assert run.phase == "Cooldown"
    assert [client.accepted_rounds for client in run.state.epoch.clients] == [3, 2, 3]


def test_a_phase_without_duration_still_lasts_a_second(play: Any) -> None:
    run = play(warmup_time=0, min_clients=1, init_min_clients=2)
    run.join(0, 1)
    run.tick(after=3)
    run.do(run.ready(0))
    assert run.tick() == []
    assert run.tick(after=1)[-1] == RoundStarted(epoch=0, height=0, step=1, drain=False)
    assert run.round.slots == (0,)


def test_readiness_below_the_minimum_starts_nothing(play: Any) -> None:
    run = play(init_min_clients=2, min_clients=2)
    run.join(0, 1)
    run.tick(after=3)
    run.withdraw(0)
    assert run.do(run.ready(1)) == []
    assert run.phase == "Warmup"
    run.tick()
    assert run.phase == "WaitingForMembers"


def test_a_drain_round_with_fewer_clients_than_witness_nodes_elects_all_of_them(play: Any) -> None:
    run = play(3, witness_nodes=3, min_clients=3, init_min_clients=3)
    run.play_round()
    run.withdraw(2)
    run.play_round()
    run.tick(after=1)
    assert (run.round.drain, run.elected, run.state.epoch.ending) == (True, (0, 1), EndReason.TooFewClients)
    run.play_round()
    assert run.phase == "Cooldown"
    assert [event.accepted for event in run.seen_events(RoundSettled)] == [(0, 1, 2), (0, 1, 2)]
