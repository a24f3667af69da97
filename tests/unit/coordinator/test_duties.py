"""Missed duties (F16): counted, then not waited for, then dropped; forgiven by statements that come in time.

Of witnesses that do not state or state late, and of trainers whose result divided the witnesses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from psyche_core.coordinator.commands import ClientsExited, Event, HealthCheck, RoundSettled, RoundStarted, StatementVoided
from psyche_core.types import ClientState, bitmap

STRANGERS = bitmap([77])


def missed(run: Any, slot: int = 3) -> int:
    return int(run.state.epoch.clients[slot].missed)


def set_missed(run: Any, score: int, slot: int = 3) -> None:
    clients = list(run.state.epoch.clients)
    clients[slot] = replace(clients[slot], missed=score)
    run.state = replace(run.state, epoch=replace(run.state.epoch, clients=tuple(clients)))


def others_state(run: Any, *silent: int) -> list[Event]:
    """Every elected witness of the round but these states."""
    height, events = run.round.height, []
    for slot in run.elected:
        if slot not in silent and run.phase in ("RoundTrain", "RoundWitness") and run.round.height == height:
            events += run.do(run.statement(slot))
    return events


def round_without(run: Any, *silent: int) -> list[Event]:
    """A whole round in which these do not state, with the witness phase's time passing where the round waits for them."""
    height = run.round.height
    events = others_state(run, *silent)
    if run.phase == "RoundWitness" and run.round.height == height:
        events += run.tick(after=run.state.config.round_witness_time + 1)
    assert run.phase == "Cooldown" or run.round.height == height + 1
    return events


def test_a_witness_is_waited_for_until_it_has_missed_two_duties(play: Any) -> None:
    run = play(4)
    for score in (32, 64):
        others_state(run, 3)
        assert (run.phase, missed(run)) == ("RoundWitness", score - 32)
        assert run.tick(after=10) == []
        run.tick(after=1)
        assert (run.phase, missed(run)) == ("RoundTrain", score)
    height = run.round.height
    others_state(run, 3)
    assert (run.round.height, missed(run)) == (height + 1, 66)


def test_nobody_waits_for_a_slow_witness_and_it_pays_little_for_it(play: Any) -> None:
    run = play(4)
    set_missed(run, 64)
    for score in range(66, 90, 2):
        others_state(run, 3)
        assert missed(run) == score


def test_statements_forgive_and_bring_back_the_waiting(play: Any) -> None:
    run = play(4)
    round_without(run, 3)
    run.play_round()
    assert missed(run) == 31
    round_without(run, 3)
    run.do(run.statement(3))
    assert missed(run) == 62
    others_state(run, 3)
    set_missed(run, 64)
    run.do(run.statement(3), after=1)
    assert missed(run) == 63
    others_state(run, 3)
    others_state(run, 3)
    assert run.phase == "RoundWitness"
    run.do(run.statement(3))
    assert (run.phase, missed(run)) == ("RoundTrain", 62)


def test_nothing_is_forgiven_below_zero(play: Any) -> None:
    run = play(4)
    run.play_round()
    assert [missed(run, slot) for slot in range(4)] == [0, 0, 0, 0]


def test_who_never_states_is_dropped(play: Any) -> None:
    run = play(4, total_steps=2000)
    rounds, events = 0, []
    while ClientState.Healthy is run.state.epoch.clients[3].state:
        events = round_without(run, 3)
        rounds += 1
        assert rounds <= 34
    assert (rounds, missed(run)) == (34, 128)
    assert ClientsExited(epoch=0, slots=(3,)) in events
    assert run.state.epoch.clients[3].state is ClientState.Dropped
    assert run.round.slots == (0, 1, 2)
    run.come_back(3)
    assert (run.state.healthy_slots, missed(run)) == ((0, 1, 2, 3), 64)
    run.play_round()
    assert 3 in run.round.slots
    others_state(run, 3)
    assert missed(run) == 66


def test_the_score_stays_within_its_byte(play: Any) -> None:
    run = play(4)
    set_missed(run, 254)
    round_without(run, 3)
    assert (missed(run), run.state.epoch.clients[3].state) == (255, ClientState.Dropped)


def test_who_comes_back_with_few_missed_duties_keeps_its_score(play: Any) -> None:
    run = play(4)
    round_without(run, 3)
    run.withdraw(3)
    run.come_back(3)
    assert missed(run) == 32


@pytest.mark.parametrize("leaves", [False, True])
def test_the_next_epoch_begins_with_the_score(play: Any, members: Any, leaves: bool) -> None:
    """Else a witness that never states would hold up the first rounds of each epoch. Keys decide, slots may differ."""
    run = play(4, rounds_per_epoch=3, total_steps=100)
    for _ in range(2):
        round_without(run, 3)
    run.play_epoch()
    set_missed(run, 130)
    set_missed(run, 20, slot=1)
    if leaves:
        run.withdraw(0)
    run.cool_down()
    run.join(7)
    run.warm_up()
    scores = {client.id.signer: client.missed for client in run.state.epoch.clients}
    assert [scores.get(members(number).signer) for number in (0, 1, 2, 3, 7)] == [None if leaves else 0, 20, 0, 64, 0]
    slow = next(slot for slot, client in enumerate(run.state.epoch.clients) if client.missed == 64)
    height = run.round.height
    others_state(run, slow)
    assert run.round.height == height + 1


def test_a_missed_duty_costs_the_share_it_attests_to(play: Any) -> None:
    """The result is applied all the same: it is the pay that is lost."""
    run = play(4)
    run.play_round()
    (settled,) = [event for event in round_without(run, 3) if isinstance(event, RoundSettled)]
    assert (settled.height, settled.accepted) == (0, (0, 1, 2, 3))
    assert [client.accepted_rounds for client in run.state.epoch.clients] == [1, 1, 1, 0]
    run.play_round()
    assert [client.accepted_rounds for client in run.state.epoch.clients] == [2, 2, 2, 1]


def test_a_missed_duty_in_the_drain_round_costs_the_last_share(play: Any) -> None:
    run = play(4, rounds_per_epoch=1)
    run.play_round()
    assert run.round.drain
    round_without(run, 3)
    assert run.phase == "Cooldown"
    assert [client.accepted_rounds for client in run.state.epoch.clients] == [1, 1, 1, 0]


def test_only_the_elected_have_a_duty(play: Any) -> None:
    run = play(6, witness_nodes=3, init_min_clients=6)
    run.play_round()
    idle = set(range(6)) - set(run.elected)
    run.play_round()
    assert all(missed(run, slot) == 0 for slot in idle)
    assert all(run.state.epoch.clients[slot].accepted_rounds == 1 for slot in range(6))


def test_without_a_quorum_nobody_has_missed_anything(play: Any) -> None:
    """The silent majority may be the one that was cut off by the rest."""
    run = play(4)
    run.play_round()
    others_state(run, 2, 3)
    run.tick(after=30)
    run.tick(after=11)
    assert run.round.drain
    assert [missed(run, slot) for slot in range(4)] == [0, 0, 0, 0]


def test_who_came_back_in_the_round_is_excused(play: Any) -> None:
    run = play(4)
    run.play_round()
    run.withdraw(3)
    run.come_back(3)
    round_without(run, 3)
    assert (missed(run), run.state.epoch.clients[3].accepted_rounds) == (0, 1)
    round_without(run, 3)
    assert (missed(run), run.state.epoch.clients[3].accepted_rounds) == (32, 1)


def test_who_left_has_no_duty(play: Any) -> None:
    run = play(4)
    run.play_round()
    run.withdraw(3)
    others_state(run, 3)
    run.tick()
    assert missed(run) == 0
    assert run.state.epoch.clients[3].accepted_rounds == 1


# ---------------------------------------------------------------- void statements


def test_a_void_statement_counts_for_nothing_but_against_its_sender(play: Any) -> None:
    run = play(4)
    run.play_round()
    before = run.state
    assert run.do(run.statement(3, participants=STRANGERS)) == [StatementVoided(epoch=0, height=1, slot=3)]
    assert missed(run) == 64
    set_missed(run, 0)
    assert run.state == before


def test_nobody_waits_for_who_made_a_void_statement(play: Any) -> None:
    run = play(4)
    run.do(run.statement(3, seen=[0]))
    others_state(run, 3)
    assert run.round.height == 1
    assert missed(run) == 66


def test_a_void_statement_of_the_last_one_waited_for_ends_the_round(play: Any) -> None:
    run = play(4)
    run.play_round()
    others_state(run, 3)
    assert run.phase == "RoundWitness"
    events = run.do(run.statement(3, participants=STRANGERS))
    assert events[0] == StatementVoided(epoch=0, height=1, slot=3)
    assert RoundStarted(epoch=0, height=2, step=3, drain=False) in events
    assert run.state.epoch.clients[3].accepted_rounds == 0


def test_a_void_statement_does_not_end_the_training(play: Any) -> None:
    run = play(4)
    for slot in range(2):
        run.do(run.statement(slot))
    run.do(run.statement(2, participants=STRANGERS))
    run.do(run.statement(3, participants=STRANGERS))
    assert (run.phase, run.round.height) == ("RoundTrain", 0)


def test_a_proper_statement_may_still_follow(play: Any) -> None:
    run = play(4)
    run.play_round()
    run.do(run.statement(3, participants=STRANGERS))
    run.do(run.statement(3))
    assert missed(run) == 63
    others_state(run, 3)
    assert (run.round.height, missed(run), run.state.epoch.clients[3].accepted_rounds) == (2, 63, 1)
    run.play_round()


def test_a_void_statement_after_a_proper_one_is_only_a_duplicate(play: Any) -> None:
    run = play(4)
    run.do(run.statement(3))
    run.refused(run.statement(3, participants=STRANGERS), "DuplicateWitness")


@pytest.mark.parametrize("voids", [2, 5])
def test_who_makes_void_statements_again_is_dropped_with_the_round(play: Any, voids: int) -> None:
    run = play(4)
    run.play_round()
    for _ in range(voids):
        run.do(run.statement(3, participants=STRANGERS))
    assert missed(run) == min(64 * voids, 255)
    assert 3 in run.state.healthy_slots
    events = others_state(run, 3)
    assert ClientsExited(epoch=0, slots=(3,)) in events
    assert run.round.slots == (0, 1, 2)


# ---------------------------------------------------------------- late statements


def late_round(run: Any, *, late: int, slot: int = 3) -> list[Event]:
    """A round in which all others state at once, and this slot `late` seconds after RoundWitness began."""
    for other in run.elected:
        if other != slot:
            run.do(run.statement(other))
    assert run.phase == "RoundWitness"
    return list(run.do(run.statement(slot), after=late))


@pytest.mark.parametrize(("late", "score"), [(0, 9), (1, 12), (2, 26), (11, 26)])
def test_a_late_statement_adds_to_the_score(play: Any, late: int, score: int) -> None:
    """One whole second may be a fraction of a second; two are more than one for certain."""
    run = play(4)
    run.play_round()
    set_missed(run, 10)
    late_round(run, late=late)
    assert missed(run) == score


def test_a_statement_that_the_training_waits_for_is_not_late(play: Any) -> None:
    run = play(4)
    set_missed(run, 10)
    run.do(run.statement(3), after=25)
    assert missed(run) == 9


def test_a_late_statement_counts_and_its_sender_is_paid(play: Any) -> None:
    run = play(4)
    run.play_round()
    events = late_round(run, late=5)
    (settled,) = [event for event in events if isinstance(event, RoundSettled)]
    assert settled.accepted == (0, 1, 2, 3)
    assert [client.accepted_rounds for client in run.state.epoch.clients] == [1, 1, 1, 1]
    assert run.state.round_at(1).statements[-1].index == 3


def test_who_is_always_late_is_left_behind_and_not_dropped(play: Any) -> None:
    run = play(4)
    for score in (16, 32, 48, 80):
        late_round(run, late=5)
        assert missed(run) == score
    height = run.round.height
    for other in range(3):
        run.do(run.statement(other))
    assert (run.round.height, missed(run)) == (height + 1, 82)


def test_a_late_statement_of_who_is_not_waited_for_changes_nothing(play: Any) -> None:
    """Another one is waited for still, so the round goes on."""
    run = play(5)
    set_missed(run, 100)
    for other in range(2):
        run.do(run.statement(other))
    run.tick(after=30)
    run.do(run.statement(3), after=10)
    assert (run.phase, missed(run)) == ("RoundWitness", 100)


@pytest.mark.parametrize(("score", "left"), [(47, 63), (48, 80), (63, 80)])
def test_lateness_raises_the_score_to_eighty_at_most(play: Any, score: int, left: int) -> None:
    run = play(4)
    set_missed(run, score)
    late_round(run, late=2)
    assert missed(run) == left


def test_statements_in_time_bring_back_the_waiting_after_lateness(play: Any) -> None:
    run = play(4)
    set_missed(run, 80)
    rounds = 0
    while missed(run) >= 64:
        run.do(run.statement(3))
        others_state(run, 3)
        rounds += 1
    assert rounds == 17


@pytest.mark.parametrize(("late", "added"), [(4, -1), (5, 2), (10, 2), (11, 16)])
def test_what_counts_as_late_grows_with_the_rounds(play: Any, late: int, added: int) -> None:
    """In rounds of 20 s, 4 s are in time and 10 s are not very late."""
    run = play(4, max_round_train_time=100, round_witness_time=20)
    set_missed(run, 10)
    run.now = run.state.epoch.start_time + 20 - late
    late_round(run, late=late)
    assert missed(run) == 10 + added


def test_a_clock_that_went_back_makes_nobody_late(play: Any) -> None:
    run = play(4)
    set_missed(run, 10)
    run.now = run.state.epoch.start_time - 50
    for other in range(4):
        run.do(run.statement(other))
    assert missed(run) == 9


def test_who_came_back_in_the_round_is_not_late(play: Any) -> None:
    run = play(7)
    run.play_round()
    run.withdraw(3)
    for other in (0, 1, 2, 4):
        run.do(run.statement(other))
    run.come_back(3)
    set_missed(run, 10)
    run.do(run.statement(5))
    assert run.phase == "RoundWitness", "the last one is waited for"
    run.do(run.statement(3), after=5)
    assert missed(run) == 9


# ---------------------------------------------------------------- results that divide the witnesses


def divided_round(run: Any, *, seen_by: int, slot: int = 3, stating: int = 8) -> list[Event]:
    """A round in which only so many of the witnesses that state have seen this slot's result of the round before."""
    height, before = run.round.height, run.shares(run.round.height - 1)
    events: list[Event] = []
    for number, witness in enumerate(run.elected[:stating]):
        if run.round.height == height and run.phase != "Cooldown":
            events += run.do(run.statement(witness, seen=[one for one in before if one != slot or number < seen_by]))
    return events


@pytest.mark.parametrize(("seen_by", "added"), [(3, 0), (4, 32), (5, 32), (6, 0), (8, 0)])
def test_a_result_that_half_of_the_witnesses_saw_is_a_missed_duty(play: Any, seen_by: int, added: int) -> None:
    """It is not accepted and its samples are assigned again, but a health report does not drop its trainer at once."""
    run = play(8)
    run.play_round()
    (settled,) = [event for event in divided_round(run, seen_by=seen_by) if isinstance(event, RoundSettled)]
    assert (3 in settled.accepted) == (seen_by >= 6)
    assert missed(run) == added
    if seen_by < 6:
        events = run.do(HealthCheck(run.state.epoch.clients[0].id, (3,)))
        assert events == ([] if seen_by >= 4 else [ClientsExited(epoch=0, slots=(3,))])
    assert (3 in run.state.healthy_slots) == (seen_by >= 4)


def test_who_divides_the_witnesses_again_and_again_is_dropped(play: Any) -> None:
    """Two of its results in a row, and it is not waited for; from then on each adds 2, and each of its statements takes 1 off."""
    run = play(8, total_steps=2000)
    run.play_round()
    scores = []
    while 3 in run.state.healthy_slots:
        divided_round(run, seen_by=4)
        scores.append(missed(run))
        assert len(scores) < 100
    assert scores[:4] == [32, 63, 94, 95]
    assert scores[-1] == 128


def test_too_few_statements_divide_nobody(play: Any) -> None:
    """Half of the witnesses stated and saw everything: the others' silence is not the trainers' fault."""
    run = play(8)
    run.play_round()
    divided_round(run, seen_by=8, stating=5)
    run.tick(after=30)
    run.tick(after=11)
    assert run.round.drain
    assert [missed(run, slot) for slot in range(8)] == [0] * 8


def test_who_was_absent_and_came_back_has_divided_nobody(play: Any) -> None:
    run = play(8)
    run.withdraw(3)
    run.come_back(3)
    run.play_round()
    divided_round(run, seen_by=4)
    assert missed(run) == 0


def test_a_silent_witness_whose_result_divided_the_others_missed_two_duties(play: Any) -> None:
    run = play(8)
    run.play_round()
    before = run.shares(run.round.height - 1)
    for witness in (0, 1, 2, 4, 5, 6, 7):
        run.do(run.statement(witness, seen=[one for one in before if one != 3 or witness < 6]))
    run.tick(after=run.state.config.round_witness_time + 1)
    assert missed(run) == 64
