"""Defects of the reference implementation that this one must not have, by their number in the study of it (B1 to B28).

Every number that concerns a coordinator has a test below that is named after it. The others:

    B5   file name of a saved state             the TCP backend's: plugins/backend_tcp/tests
    B6   re-join forgotten after an exit        its rule below; the TCP server's own list: plugins/backend_tcp/tests
    B9   owned Merkle proofs swap siblings      there are no proofs here, only roots (test_vectors, test_data)
    B14  division by zero in a first update     below, and for files in tests/unit/config/test_run_config.py
    B16  first resume sets the step to 1        test_pause
    B17  resume at total_steps                  test_pause
    B19  client version and nonce of an account on the chain: the Solana backend's

The security findings (S1 to S9) are in test_reference_attacks, the scenarios in test_reference_scenarios.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.coordinator.commands import (
    CooldownStarted,
    EpochEnded,
    HealthCheck,
    Pause,
    SetFutureEpochRates,
    UpdateConfig,
    Withdraw,
)
from psyche_core.coordinator.learning_rate import learning_rate
from psyche_core.coordinator.round.bloom_filter import BroadcastBloom
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.round.witness import accepted_slots, choose_commitment, quorum
from psyche_core.coordinator.state import EndReason
from psyche_core.types import BatchId, NodeIdentity, RunState


@pytest.mark.parametrize("config", [{"total_steps": 2}, {"epoch_time": 31}])
def test_b1_the_last_trained_rounds_are_attested_to_and_kept(play: Any, config: dict[str, int]) -> None:
    run = play(2, **config)
    run.play_round()
    run.now += 31
    run.play_round()
    assert run.round.drain
    last = run.state.epoch.rounds[-2]
    run.play_round()
    assert run.phase == "Cooldown"
    assert accepted_slots(run.state, last) == {0, 1}
    assert len(run.applied) == 4


def test_b2_a_pause_pays_who_worked(play: Any) -> None:
    run = play()
    run.do(SetFutureEpochRates(earning_total_shared=100))
    run.start(2)
    run.play_round()
    run.do(Pause())
    run.play_epoch()
    run.cool_down()
    assert run.phase == "Paused"
    assert [account.earned for account in run.state.accounts] == [50, 50]


def test_b3_an_epoch_given_up_in_warmup_pays_nobody(play: Any) -> None:
    run = play(init_min_clients=3, min_clients=3)
    run.do(SetFutureEpochRates(earning_total_shared=100, slashing_per_client=100))
    run.join(0, 1, 2)
    run.tick(after=3)
    run.do(run.ready(0))
    run.withdraw(1)
    assert run.tick(after=1) == [EpochEnded(epoch=0, success=False)]
    assert run.state.accounts == ()


@pytest.mark.parametrize("exits", [(3, 1), (1, 3)])
def test_b4_the_order_of_exits_decides_nothing_about_slashing(play: Any, members: Any, exits: tuple[int, int]) -> None:
    run = play()
    run.do(SetFutureEpochRates(slashing_per_client=9))
    run.start(5)
    run.play_round()
    for slot in exits:
        run.do(run.evidence(slot, 0, by=0))
        run.play_round()
    run.do(Pause())
    run.play_epoch()
    run.cool_down()
    slashed = {account.signer for account in run.state.accounts if account.slashed}
    assert slashed == {members(1).signer, members(3).signer}


def test_b6_who_joins_again_after_an_exit_stays_pending_through_every_tick(play: Any, members: Any) -> None:
    run = play(3, rounds_per_epoch=3)
    run.withdraw(1)
    run.join(1)
    for _ in range(3):
        run.tick(after=1)
        run.play_round()
        assert members(1) in run.state.pending
    run.play_epoch()
    run.cool_down()
    run.warm_up()
    assert members(1) in [client.id for client in run.state.epoch.clients]


def test_b7_old_rounds_keep_their_indices_after_exits(play: Any) -> None:
    run = play(5)
    given_before = run.shares(0)
    elected_before = run.elected
    run.play_round()
    run.withdraw(1)
    run.withdraw(3)
    run.play_round()
    assert run.shares(0) == given_before
    assert witness_slots(run.state, run.state.epoch.rounds[0]) == elected_before


def test_b8_no_round_before_the_first(play: Any) -> None:
    run = play(2)
    assert run.state.round_at(-1) is None
    run.play_round()
    assert run.round.height == 1
    assert run.state.round_at(run.round.height - 2) is None


def test_b10_an_epoch_of_one_trained_round_loses_nothing(play: Any) -> None:
    """The reference guarded against short epochs by comparing the run's absolute step; here no length needs a guard."""
    run = play(2, epoch_time=31)
    run.now += 40
    run.play_round()
    assert (run.round.height, run.round.drain, run.state.epoch.ending) == (1, True, EndReason.EpochTime)
    run.play_round()
    assert [batch.first for batch in sorted(run.applied)] == [0, 4]
    assert run.state.requeue == ()


def test_b11_one_witness_of_many_is_not_a_quorum_when_everybody_witnesses(play: Any) -> None:
    run = play(4, witness_nodes=0)
    run.play_round()
    run.do(run.statement(0))
    run.tick(after=30)
    run.tick(after=11)
    assert accepted_slots(run.state, run.state.epoch.rounds[0]) == frozenset()
    assert run.state.epoch.ending is EndReason.MissedQuorum


def test_b12_a_full_filter_does_not_make_dead_trainers_look_healthy(play: Any) -> None:
    """Participants are an exact bitmap; the filter cannot set anybody's bit."""
    run = play(3)
    run.play_round()
    for slot in run.elected:
        run.do(run.statement(slot, seen=[0, 1], broadcast_bloom=b"\xff" * 320))
    assert accepted_slots(run.state, run.state.epoch.rounds[0]) == {0, 1}


def test_b13_extra_time_is_given_after_a_long_wait(play: Any) -> None:
    run = play(init_min_clients=2, min_clients=1)
    run.tick(after=10_000)
    run.join(0, 1)
    run.tick()
    assert run.phase == "WaitingForMembers"
    run.tick(after=3)
    assert run.phase == "Warmup"


def test_b14_a_refused_update_names_what_was_wrong_and_never_divides_by_zero(play: Any) -> None:
    """A model alone, on a run that was never configured (all zero), with a cold start."""
    run = play()
    zero = run.state.config.model_copy(
        update={name: 0 for name in type(run.state.config).model_fields if name != "checkpointers"}
    )
    run.state = replace(run.state, run_state=RunState.Uninitialized, config=zero)
    cold = run.state.model.model_copy(update={"LLM": run.state.model.LLM.model_copy(update={"cold_start_warmup_steps": 9})})
    run.refused(UpdateConfig(model=cold), "ConfigSanityCheckFailed")
    run.state = replace(run.state, config=play().state.config)
    long = cold.model_copy(update={"LLM": cold.LLM.model_copy(update={"max_seq_len": 0})})
    run.refused(UpdateConfig(model=long), "ModelSanityCheckFailed")


@settings(deadline=None)
@given(st.integers(0, 2**62), st.integers(0, 2**63))
def test_b15_batches_are_read_as_they_are_printed(first: int, more: int) -> None:
    batch = BatchId(first, min(first + more, 2**63 - 2))
    assert BatchId.parse(str(batch)) == batch
    assert BatchId.parse(f"B{first}") == BatchId(first, first)


def test_b18_past_members_and_small_batches_close_no_run(play: Any, members: Any) -> None:
    """The reference counted every wallet ever seen against the batch size, and not at all once the batch was smaller."""
    run = play(rounds_per_epoch=1, global_batch_size_start=2, global_batch_size_end=2)
    for generation in range(4):
        newcomers = range(3 * generation, 3 * generation + 3)
        run.join(*newcomers)
        run.warm_up()
        assert len(run.round.slots) == 3
        run.play_epoch()
        run.cool_down()
        for number in newcomers:
            run.do(Withdraw(members(number)))


def test_b20_more_clients_than_samples_drops_nobody(play: Any) -> None:
    run = play(6, global_batch_size_start=2, global_batch_size_end=12, global_batch_size_warmup_tokens=64 * 100)
    for _ in range(3):
        run.play_round()
        for slot in set(range(6)) - set(run.shares(run.round.height - 2)):
            sender = run.state.epoch.clients[run.state.epoch.rounds[-1].slots[0]].id
            run.refused(HealthCheck(sender=sender, slots=(slot,)), "InvalidHealthCheck")
    assert run.state.healthy_slots == tuple(range(6))


def test_b21_the_unhealthy_are_swept_at_the_warmup_time_out_before_the_count(play: Any) -> None:
    run = play(init_min_clients=4, min_clients=2)
    run.join(0, 1, 2, 3)
    run.tick(after=3)
    run.withdraw(1)
    run.do(run.ready(0))
    run.do(run.ready(2))
    run.tick(after=20)
    assert run.round.slots == (0, 2)

    few = play(init_min_clients=2, min_clients=2)
    few.join(0, 1)
    few.tick(after=3)
    few.do(few.ready(0))
    few.tick(after=20)
    assert few.phase == "WaitingForMembers"
    assert few.state.epoch.rounds == ()


def test_b22_two_of_four_witnesses_do_not_decide(play: Any) -> None:
    run = play(4)
    run.play_round()
    for place, slot in enumerate(run.elected):
        run.do(run.statement(slot, seen=[0, 1, 2, 3] if place < 2 else []))
    assert accepted_slots(run.state, run.state.epoch.rounds[0]) == frozenset()
    assert quorum(4) == 3


def test_b23_equal_votes_do_not_follow_arrival(play: Any) -> None:
    run = play(3)
    run.play_round()
    bloom = BroadcastBloom(run.round.seed)
    bloom.add(b"a" * 32)
    bloom.add(b"b" * 32)
    for slot in run.elected:
        run.do(run.statement(slot, broadcast_bloom=bloom.to_bytes()))
    first = run.state.epoch.rounds[0]
    assert choose_commitment(run.state, first, 0, [b"a" * 32, b"b" * 32]) == b"a" * 32
    assert choose_commitment(run.state, first, 0, [b"b" * 32, b"a" * 32]) == b"a" * 32


def test_b24_many_pending_members_are_counted_exactly(play: Any, members: Any) -> None:
    run = play(init_min_clients=256)
    run.join(*range(255))
    assert run.state.minimum_since is None
    run.join(255)
    assert run.tick(after=3) != []


def test_b25_no_elected_witness_is_no_panic(play: Any) -> None:
    assert quorum(0) == 0
    run = play(2, witness_nodes=1)
    run.withdraw(run.elected[0])
    run.tick(after=30)
    assert run.phase == "Cooldown"
    assert run.seen_events(CooldownStarted)[-1].reason == "Abandoned"


def test_b26_members_alike_in_their_first_bytes_are_not_confused(play: Any, members: Any) -> None:
    """Tables are keyed by the whole signer; the four bytes people see are for people only."""
    twins = [NodeIdentity(bytes(4) + bytes([number]) * 28, members(number).p2p) for number in (1, 2)]
    assert twins[0].short == twins[1].short
    run = play(rounds_per_epoch=1)
    run.do(SetFutureEpochRates(earning_total_shared=10))
    for twin in twins:
        run.do(run.joining(twin))
    run.warm_up()
    run.play_epoch()
    run.cool_down()
    assert {account.signer: account.earned for account in run.state.accounts} == {twin.signer: 5 for twin in twins}


def test_b27_a_round_nobody_attested_to_uses_no_step_and_no_sample(play: Any) -> None:
    run = play(1)
    run.tick(after=30)
    run.tick(after=11)
    assert run.phase == "Cooldown"
    assert run.state.progress.step == 1
    assert run.state.requeue == (BatchId(0, 7),)
    run.cool_down()
    run.warm_up()
    assert (run.round.step, run.round.batches) == (1, (BatchId(0, 7),))


def test_b27_a_pause_uses_no_untrained_sample(play: Any) -> None:
    run = play(2)
    run.do(Pause())
    run.play_round()
    run.play_round()
    run.cool_down()
    assert run.phase == "Paused"
    assert run.state.progress.data_index == sum(len(batch) for batch in run.applied) == 8


def test_b28_the_cosine_stays_at_its_end() -> None:
    cosine = {"Cosine": {"base_lr": 4e-4, "warmup_init_lr": 0.0, "warmup_steps": 500, "total_steps": 25000, "final_lr": 4e-5}}
    assert {learning_rate(cosine, step) for step in (25000, 25001, 37250, 49500, 74000)} == {4e-5}
