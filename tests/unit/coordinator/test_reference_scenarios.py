"""The reference's test scenarios, and those it lists as worth having, as far as they concern a coordinator.

Numbers are those of the study of the reference (7.1 to 7.6). What has no test here:

    7.1  elections, shuffles, LCG, bloom filter, Merkle roots, schedules   test_vectors, test_data
    7.1  interval tree, fixed vectors, similarity, bounded queue, barrier  no such parts here; the queue of samples: test_data
    7.2  4 full round                        test_lifecycle, test_phase_table; 5 rewards of 240 clients: test_rewards
    7.2  1-3, 6-14                           the Solana programs'
    7.3  sockets                             plugins/backend_tcp/tests; the phases and who takes part: test_lifecycle and below
    7.4  real processes                      tests/e2e; their rules: below
    7.4  loss of RPC servers, 7.5            the Solana backend's
    7.6  quorum failure                      test_lifecycle.test_f1_a_missed_quorum_drains_too
    7.6  total_steps end                     test_lifecycle.test_f3_total_steps_ends_in_finished
    7.6  cold start window                   test_lifecycle (pause), test_vectors
    7.6  witness, warmup and health errors   test_refusals, test_phase_table, test_reference_attacks
    7.6  client without a batch              test_data.test_f10_a_slot_without_samples_is_never_unhealthy
    7.6  index shift after exits             test_reference_defects (B7)
    7.6  pause in each state, unpause at total_steps   test_pause
    7.6  ClientsFull                         test_refusals; MoreClientsThanBatches: no such limit (B18, B20)
    7.6  slashing order                      test_reference_defects (B4)
    7.6  Gcs checkpoints                     test_checkpointers
    7.6  nonce and lag; authorization revoked between epochs   the Solana backend's
"""

from __future__ import annotations

from typing import Any

import pytest

from psyche_core.coordinator import apply, new_state
from psyche_core.coordinator.commands import (
    ClientsExited,
    CooldownStarted,
    EpochEnded,
    HealthCheck,
    Pause,
    Resume,
    Tick,
    Withdraw,
)
from psyche_core.coordinator.round.batch_size import batch_size
from psyche_core.coordinator.round.witness import accepted_slots
from psyche_core.coordinator.state import STORED_ROUNDS, EndReason, Progress
from psyche_core.types import total_samples


def test_7_3_ten_of_fifteen_members_wait(play: Any) -> None:
    run = play(init_min_clients=15, min_clients=10)
    run.join(*range(10))
    assert run.tick(after=1000) == []
    assert run.phase == "WaitingForMembers"


def test_7_3_a_node_that_stops_in_warmup_sends_the_rest_back_to_waiting(play: Any, members: Any) -> None:
    run = play(init_min_clients=2, min_clients=2)
    run.join(0, 1)
    run.tick(after=3)
    run.withdraw(0)
    run.tick(after=1)
    assert run.phase == "WaitingForMembers"
    assert list(run.state.pending) == [members(1)]


def test_7_3_everybody_is_in_the_participants(play: Any) -> None:
    run = play(5, global_batch_size_start=5, global_batch_size_end=5)
    run.play_round()
    run.play_round()
    assert accepted_slots(run.state, run.state.epoch.rounds[0]) == {0, 1, 2, 3, 4}
    assert all(total_samples(share) == 1 for share in run.shares(0).values())


def test_7_3_a_replacement_joins_after_a_node_stopped_in_training(play: Any, members: Any) -> None:
    run = play(2, min_clients=2, init_min_clients=2)
    run.play_round()
    run.withdraw(1)
    run.play_epoch()
    assert run.seen_events(CooldownStarted)[-1].reason == "TooFewClients"
    run.cool_down()
    assert run.tick(after=100) == []
    run.join(7)
    run.warm_up()
    assert [client.id for client in run.state.epoch.clients] == [members(0), members(7)]


@pytest.mark.parametrize("joiners", [1, 2])
def test_7_3_who_joins_in_training_gets_the_model_from_peers_in_the_next_epoch(play: Any, joiners: int) -> None:
    run = play(2, rounds_per_epoch=2)
    run.play_round()
    run.join(*range(10, 10 + joiners))
    assert len(run.state.epoch.clients) == 2
    run.play_epoch()
    run.cool_down()
    run.warm_up()
    assert len(run.state.epoch.clients) == 2 + joiners
    assert run.state.model.LLM.checkpoint.name == "P2P"


def test_7_4_a_killed_client_costs_two_reports_and_its_own_shares_only(play: Any) -> None:
    """Three clients, one dies in round 2: both others report it, its samples are trained by somebody."""
    run = play(3, global_batch_size_start=6, global_batch_size_end=6)
    run.play_round()
    run.play_round()
    dead = 2
    lost = run.shares(run.round.height)[dead]
    for slot in (0, 1):
        run.do(run.statement(slot))
    run.tick(after=11)
    for slot in (0, 1):
        run.do(run.statement(slot, seen=[0, 1]))
    run.tick(after=11)
    reporters = [run.state.epoch.clients[slot].id for slot in (0, 1)]
    assert run.do(HealthCheck(sender=reporters[0], slots=(dead,))) == [ClientsExited(epoch=0, slots=(dead,))]
    assert run.do(HealthCheck(sender=reporters[1], slots=(dead,))) == []
    for _ in range(3):
        run.play_round(seen=[slot for slot in run.shares(run.round.height - 1) if slot != dead])
    assert run.round.slots == (0, 1)
    run.do(Pause())
    run.play_epoch()
    trained = {sample for batch in run.applied for sample in range(batch.first, batch.last + 1)}
    assert {sample for batch in lost for sample in range(batch.first, batch.last + 1)} <= trained
    assert run.state.requeue == ()


def test_7_4_a_member_that_leaves_while_waiting_comes_back(play: Any, members: Any) -> None:
    run = play(init_min_clients=2, min_clients=2)
    run.join(0)
    run.do(Withdraw(members(0)))
    run.join(1)
    assert run.tick(after=50) == []
    run.join(0)
    run.warm_up()
    assert len(run.state.epoch.clients) == 2


def test_7_4_when_all_clients_are_gone_the_next_load_from_the_hub(play: Any, members: Any) -> None:
    run = play(2, rounds_per_epoch=1)
    run.play_epoch()
    run.cool_down()
    assert run.state.model.LLM.checkpoint.name == "P2P"
    for number in (0, 1):
        run.do(Withdraw(members(number)))
    run.join(5, 6)
    run.warm_up()
    assert run.state.model.LLM.checkpoint.name == "Hub"


def test_7_4_everybody_leaves_in_warmup(play: Any) -> None:
    run = play(init_min_clients=2, min_clients=2)
    run.join(0, 1)
    run.tick(after=3)
    run.withdraw(0)
    run.withdraw(1)
    assert run.tick() == [EpochEnded(epoch=0, success=False)]
    assert (run.phase, run.state.pending) == ("WaitingForMembers", ())
    run.join(0, 1)
    run.warm_up()


def test_7_4_lost_the_only_peer_that_had_the_model(play: Any, members: Any) -> None:
    """A joiner waits for a peer that leaves: nobody is ready at the time-out, and the next warmup loads from the hub."""
    run = play(1, rounds_per_epoch=1, init_min_clients=1)
    run.play_epoch()
    run.cool_down()
    run.join(5)
    run.tick(after=3)
    assert run.state.model.LLM.checkpoint.name == "P2P"
    run.withdraw(0)
    run.tick(after=20)
    assert run.phase == "WaitingForMembers"
    run.join(5)
    run.warm_up()
    assert run.state.model.LLM.checkpoint.name == "Hub"


def test_7_4_pause_and_resume_with_the_same_member(play: Any, members: Any) -> None:
    run = play(1)
    run.play_round()
    run.do(Pause())
    run.play_epoch()
    run.cool_down()
    run.do(Resume(), after=60)
    run.warm_up()
    assert [client.id for client in run.state.epoch.clients] == [members(0)]
    assert run.state.model.LLM.checkpoint.name == "P2P"  # the reference went back to the hub
    assert run.round.step == run.state.epoch.start_step == 3


def test_7_6_below_min_clients_without_a_replacement_the_epoch_ends_and_the_run_waits(play: Any) -> None:
    run = play(3, min_clients=3, init_min_clients=3)
    run.play_round()
    run.withdraw(2)
    run.play_epoch()
    assert run.state.epoch.ending is EndReason.TooFewClients
    run.cool_down()
    assert run.phase == "WaitingForMembers"
    assert run.tick(after=10_000) == []
    assert run.state.progress.epoch == 1


def test_7_6_the_batch_ramp_over_a_whole_run(play: Any) -> None:
    """Each round takes what the ramp says for the samples assigned before it, and the data index never skips."""
    config = {"global_batch_size_start": 2, "global_batch_size_end": 9, "global_batch_size_warmup_tokens": 64 * 40}
    run = play(2, **config, rounds_per_epoch=4, total_steps=12)
    first, sizes = 0, []
    while run.phase != "Finished":
        if run.phase == "Cooldown":
            run.cool_down()
            if run.phase == "WaitingForMembers":
                run.warm_up()
            continue
        if not run.round.drain:
            wanted = batch_size(first * 64, start=2, end=9, warmup_tokens=64 * 40)
            assert (total_samples(run.round.batches), run.round.batches[0].first) == (wanted, first)
            sizes.append(wanted)
            first += wanted
        run.play_round()
    assert (sizes[0], sizes[-1], len(sizes)) == (2, 9, 12)
    assert sizes == sorted(sizes)


def test_7_6_four_rounds_are_stored_and_heights_go_on(play: Any) -> None:
    run = play(3)
    for height in range(9):
        assert run.round.height == height
        stored = [each.height for each in run.state.epoch.rounds]
        assert stored == list(range(max(0, height - STORED_ROUNDS + 1), height + 1))
        run.play_round()
    assert run.state.round_at(4) is None
    assert run.state.round_at(9) is run.round


def test_7_6_a_run_that_starts_from_a_later_step_goes_on_there(play: Any, members: Any, joins: Any) -> None:
    base = play().state
    progress = Progress(epoch=4, step=900, data_index=12_345)
    state = new_state("test-run", base.config, base.model, progress=progress, now=base.since, instance=base.instance)
    run = play()
    run.state = state
    for number in range(2):
        run.state, _ = apply(run.state, joins(members(number)), run.now, 1)
    run.state, _ = apply(run.state, Tick(), run.now + 3, 1)
    for slot in (0, 1):
        run.state, _ = apply(run.state, run.ready(slot), run.now + 3, 1)
    assert (run.state.progress.epoch, run.round.step, run.state.epoch.start_step) == (4, 900, 900)
    assert run.round.batches[0].first == 12_345
