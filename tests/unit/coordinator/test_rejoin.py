"""Protocol section 5: who left or was dropped comes back to its slot in the same epoch, a few times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from psyche_core.coordinator.commands import ClientsReturned, HealthCheck, RoundStarted, Withdraw
from psyche_core.coordinator.lifecycle.round_timing import everybody_stated
from psyche_core.coordinator.state import MAX_REJOINS
from psyche_core.types import ClientState, NodeIdentity


def test_a_withdrawn_slot_comes_back_and_takes_part_from_the_next_round_on(play: Any) -> None:
    run = play(4)
    run.play_round()
    run.withdraw(2)
    run.play_round()
    assert run.round.slots == (0, 1, 3)
    assert run.come_back(2) == [ClientsReturned(epoch=0, slots=(2,))]
    returned = run.state.epoch.clients[2]
    assert (returned.state, returned.rejoins) == (ClientState.Healthy, 1)
    assert run.round.slots == (0, 1, 3)
    assert 2 not in run.shares(run.round.height)
    assert 2 not in run.elected
    run.play_round()
    assert run.round.slots == (0, 1, 2, 3)
    assert 2 in run.shares(run.round.height)


def test_a_dropped_slot_comes_back_in_the_witness_phase_too(play: Any) -> None:
    run = play(4)
    run.play_round()
    run.play_round(seen=[0, 1, 2])
    reporter = run.state.epoch.clients[0].id
    run.do(HealthCheck(sender=reporter, slots=(3,)))
    assert run.state.healthy_slots == (0, 1, 2)
    run.tick(after=30)
    assert run.phase == "RoundWitness"
    assert run.come_back(3) == [ClientsReturned(epoch=0, slots=(3,))]
    assert run.state.healthy_slots == (0, 1, 2, 3)


def test_who_did_not_join_again_is_told_to_join_first(play: Any, members: Any, joins: Any) -> None:
    run = play(3)
    run.withdraw(1)
    with pytest.raises(Exception, match="join first"):
        run.do(run.ready(1))
    run.refused(run.ready(1), "InvalidWitness")
    run.do(joins(members(1)))
    run.do(Withdraw(members(1)))  # thought better of it
    run.refused(run.ready(1), "InvalidWitness")


def test_another_transport_key_waits_for_the_next_epoch(play: Any, members: Any, joins: Any) -> None:
    """What the slot signed in this epoch is checked with the key it had."""
    run = play(3, rounds_per_epoch=2)
    run.withdraw(1)
    renewed = NodeIdentity(members(1).signer, members(500).p2p)
    run.do(joins(renewed))
    run.refused(run.ready(1), "InvalidWitness")
    run.refused(replace(run.ready(1), sender=renewed), "InvalidWitness")
    run.play_epoch()
    run.cool_down()
    run.warm_up()
    assert renewed in [client.id for client in run.state.epoch.clients]


def test_a_slot_comes_back_so_often_and_no_more(play: Any) -> None:
    run = play(4)
    for time in range(1, MAX_REJOINS + 1):
        run.withdraw(2)
        run.come_back(2)
        assert run.state.epoch.clients[2].rejoins == time
    run.withdraw(2)
    run.join(2)
    run.refused(run.ready(2), "RejoinsExhausted")
    run.play_round()
    run.refused(run.ready(2), "RejoinsExhausted")


def test_the_count_starts_again_with_the_next_epoch(play: Any) -> None:
    run = play(3, rounds_per_epoch=2)
    for _ in range(MAX_REJOINS):
        run.withdraw(1)
        run.come_back(1)
    run.play_epoch()
    run.cool_down()
    run.warm_up()
    assert {client.rejoins for client in run.state.epoch.clients} == {0}
    run.withdraw(1)
    run.come_back(1)


def test_a_slot_that_left_during_warmup_and_joined_again_is_ready_the_same_way(play: Any) -> None:
    run = play()
    run.join(0, 1, 2)
    run.tick(after=3)
    run.do(run.ready(0))
    run.withdraw(0)
    run.withdraw(1)
    run.refused(run.ready(1), "InvalidWitness")
    assert run.come_back(1) == [ClientsReturned(epoch=0, slots=(1,))]
    assert run.come_back(0) == [ClientsReturned(epoch=0, slots=(0,))]
    run.refused(run.ready(0), "DuplicateWitness")
    assert run.do(run.ready(2)) == [RoundStarted(epoch=0, height=0, step=1, drain=False)]
    assert run.round.slots == (0, 1, 2)


def test_the_last_one_back_in_warmup_starts_the_first_round(play: Any) -> None:
    run = play(init_min_clients=2, min_clients=2)
    run.join(0, 1)
    run.tick(after=3)
    run.do(run.ready(1))
    run.withdraw(0)
    assert run.come_back(0) == [ClientsReturned(0, (0,)), RoundStarted(epoch=0, height=0, step=1, drain=False)]


def test_who_was_late_at_the_warmup_time_out_comes_back_for_round_1(play: Any) -> None:
    run = play()
    run.join(0, 1, 2)
    run.tick(after=3)
    run.do(run.ready(0))
    run.do(run.ready(1))
    run.tick(after=20)
    run.refused(run.ready(2), "InvalidWitness")
    run.come_back(2)
    run.play_round()
    assert run.round.slots == (0, 1, 2)


def test_an_elected_witness_that_came_back_in_the_same_round_may_state(play: Any) -> None:
    run = play(4)
    run.play_round()
    run.withdraw(3)
    run.come_back(3)
    assert 3 in run.elected
    run.do(run.statement(3))
    assert [statement.index for statement in run.round.statements] == [3]


def test_an_elected_witness_that_came_back_in_the_same_round_is_not_waited_for(play: Any) -> None:
    """Its silence is no missed duty, so a member could leave and come back to hold up rounds."""
    run = play(4)
    run.play_round()
    run.withdraw(3)
    run.come_back(3)
    for slot in (0, 1):
        run.do(run.statement(slot))
        assert not everybody_stated(run.state)
    assert run.do(run.statement(2))[-1] == RoundStarted(epoch=0, height=2, step=3, drain=False)
    for slot in (0, 1, 2):
        run.do(run.statement(slot))
    assert not everybody_stated(run.state), "in the next round it is waited for again"


def test_leaving_and_coming_back_gives_no_second_statement(play: Any) -> None:
    run = play(4)
    run.play_round()
    run.do(run.statement(3))
    run.withdraw(3)
    run.refused(run.statement(3), "InvalidWitness")
    run.come_back(3)
    run.refused(run.statement(3), "DuplicateWitness")
    assert len(run.round.statements) == 1


def test_one_that_was_not_elected_is_not_waited_for_when_it_comes_back(play: Any) -> None:
    run = play(5)
    run.withdraw(4)
    run.play_round()
    assert run.round.slots == (0, 1, 2, 3)
    run.come_back(4)
    run.refused(run.statement(4), "InvalidWitness")
    run.play_round()
    assert run.round.height == 2


def test_what_was_left_undone_before_coming_back_drops_nobody_again(play: Any) -> None:
    """Otherwise any witness could repeat its report until the slot has no way back left."""
    run = play(4)
    run.play_round()
    run.play_round(seen=[0, 1, 2])
    report = HealthCheck(sender=run.state.epoch.clients[0].id, slots=(3,))
    run.do(report)
    run.come_back(3)
    assert run.do(report) == []
    assert run.do(replace(report, sender=run.state.epoch.clients[1].id)) == []
    assert run.state.epoch.clients[3].state is ClientState.Healthy
    run.refused(replace(report, slots=(2,)), "InvalidHealthCheck")


def test_who_came_back_and_works_no_better_is_dropped_again(play: Any) -> None:
    run = play(4)
    run.play_round()
    run.withdraw(3)
    run.play_round()
    run.come_back(3)
    run.play_round()
    absent = run.round.height
    assert 3 in run.shares(absent)
    run.play_round()
    run.play_round(seen=[slot for slot in run.shares(absent) if slot != 3])
    assert run.round.height == absent + 2
    run.do(HealthCheck(sender=run.state.epoch.clients[0].id, slots=(3,)))
    assert run.state.epoch.clients[3].state is ClientState.Dropped


def test_the_last_one_to_come_back_saves_the_epoch(play: Any) -> None:
    run = play(2)
    run.play_round()
    run.do(run.statement(0))
    run.withdraw(0)
    run.withdraw(1)
    run.come_back(1)
    run.tick(after=30)
    if run.phase == "RoundWitness":
        run.tick(after=11)
    assert run.phase == "RoundTrain"
    assert (run.round.height, run.round.slots) == (2, (1,))


def test_coming_back_in_the_drain_round_lets_it_be_attested_to(play: Any) -> None:
    run = play(2, rounds_per_epoch=1)
    run.play_round()
    assert run.round.drain
    run.withdraw(0)
    run.withdraw(1)
    run.come_back(0)
    run.come_back(1)
    run.play_round()
    assert run.phase == "Cooldown"
    assert len(run.applied) == 2
    assert run.state.requeue == ()


def test_a_healthy_slot_that_says_ready_changes_nothing(play: Any) -> None:
    run = play(3)
    before = run.state
    assert run.do(run.ready(1)) == []
    assert run.state is before


@pytest.mark.parametrize("has", ["the model", "another one", "none", "an earlier one"])
def test_who_comes_back_in_warmup_has_the_signed_model(play: Any, joins: Any, has: str) -> None:
    run = play(4, rounds_per_epoch=2, init_min_clients=2, min_clients=2)
    for digest in (b"\xa1" * 32, b"\xa2" * 32):
        run.play_signed_epoch(digest)
        if digest[0] == 0xA1:
            run.warm_up()
    run.tick(after=3)
    assert run.phase == "Warmup"
    run.withdraw(1)
    run.do(joins(run.state.epoch.clients[1].id))
    said = {
        "the model": run.ready(1),
        "another one": run.ready(1, digest=b"\xaf" * 32),
        "none": run.lacking(1),
        "an earlier one": run.lacking(1, held=b"\xa1" * 32),
    }[has]
    if has == "the model":
        assert run.do(said) == [ClientsReturned(epoch=2, slots=(1,))]
        assert run.state.epoch.ready == (1,)
    else:
        run.refused(said, "InvalidWitness")
