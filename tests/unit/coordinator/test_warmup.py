"""Warmup does not wait for ever (F17): enough members, a grace for the others, and nobody held up twice by the same one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from psyche_core.coordinator.commands import ClientsExited, EpochEnded, RoundStarted
from psyche_core.coordinator.state import Unready
from psyche_core.types import ClientState

WARMUP = {"warmup_time": 100, "init_min_clients": 2, "min_clients": 1}
STARTED = RoundStarted(epoch=0, height=0, step=1, drain=False)


def warming(play: Any, clients: int, **config: Any) -> Any:
    """A run whose warmup has just begun, at `run.since`."""
    run = play(**{**WARMUP, **config})
    run.join(*range(clients))
    run.tick(after=3)
    assert run.phase == "Warmup"
    return run


def later(run: Any, seconds: int) -> list[Any]:
    """A tick so many seconds after warmup began."""
    return list(run.tick(after=run.state.since + seconds - run.now))


def spoken(run: Any, slot: int, seconds: int) -> list[Any]:
    """Slot `slot` ready so many seconds after warmup began."""
    return list(run.do(run.ready(slot), after=run.state.since + seconds - run.now))


def scores(run: Any) -> dict[bytes, int]:
    return {entry.signer: entry.score for entry in run.state.unready}


def signer(run: Any, slot: int) -> bytes:
    return bytes(run.state.epoch.clients[slot].id.signer)


def test_warmup_ends_at_once_when_everybody_is_ready(play: Any) -> None:
    run = warming(play, 3)
    assert spoken(run, 0, 5) == []
    assert spoken(run, 1, 5) == []
    assert spoken(run, 2, 5) == [STARTED]
    assert run.state.unready == ()


def test_the_others_have_as_long_again_as_enough_members_took(play: Any) -> None:
    run = warming(play, 4)
    began = run.now
    spoken(run, 0, 10)
    assert run.state.epoch.ready_since is None
    spoken(run, 1, 40)
    assert run.state.epoch.ready_since == began + 40
    assert later(run, 79) == []
    assert later(run, 80) == [ClientsExited(epoch=0, slots=(2, 3)), STARTED]
    assert run.round.slots == (0, 1)
    assert [client.state for client in run.state.epoch.clients[2:]] == [ClientState.Dropped] * 2


def test_the_others_have_a_quarter_of_the_warmup_at_least(play: Any) -> None:
    run = warming(play, 3)
    spoken(run, 0, 1)
    spoken(run, 1, 2)
    assert later(run, 26) == []
    assert later(run, 27) == [ClientsExited(epoch=0, slots=(2,)), STARTED]


def test_nobody_has_longer_than_the_warmup(play: Any) -> None:
    run = warming(play, 3)
    spoken(run, 0, 1)
    spoken(run, 1, 90)
    assert later(run, 99) == []
    assert later(run, 100) == [ClientsExited(epoch=0, slots=(2,)), STARTED]


def test_fewer_than_it_takes_to_start_begin_only_at_the_time_out(play: Any) -> None:
    run = warming(play, 3, init_min_clients=3)
    spoken(run, 0, 1)
    spoken(run, 1, 2)
    assert run.state.epoch.ready_since is None
    assert later(run, 99) == []
    assert STARTED in later(run, 100)


def test_a_late_member_s_own_word_can_end_the_grace(play: Any) -> None:
    run = warming(play, 4)
    spoken(run, 0, 1)
    spoken(run, 1, 2)
    assert spoken(run, 2, 30) == [ClientsExited(epoch=0, slots=(3,)), STARTED]
    assert run.round.slots == (0, 1, 2)


def test_the_grace_runs_on_when_a_ready_member_leaves(play: Any) -> None:
    """Else members that come and go would hold up the others."""
    run = warming(play, 3)
    spoken(run, 0, 1)
    spoken(run, 1, 2)
    run.withdraw(1)
    assert later(run, 26) == []
    assert STARTED in later(run, 27)


def test_without_min_clients_the_grace_starts_nothing(play: Any) -> None:
    run = warming(play, 4, min_clients=2)
    spoken(run, 0, 1)
    spoken(run, 1, 2)
    run.withdraw(1)
    assert later(run, 60) == []
    assert later(run, 100)[-1] == EpochEnded(epoch=0, success=False)


def test_who_is_dropped_may_come_back_in_the_same_epoch(play: Any) -> None:
    run = warming(play, 3)
    spoken(run, 0, 1)
    spoken(run, 1, 2)
    later(run, 27)
    run.come_back(2)
    assert run.state.healthy_slots == (0, 1, 2)


# ---------------------------------------------------------------- who was late before


def late_once(run: Any, *late: int) -> None:
    """A warmup at whose end these slots are not ready, given up because too few were."""
    for slot in run.state.healthy_slots:
        if slot not in late:
            run.do(run.ready(slot))
    later(run, 100)


def test_a_signer_that_was_late_twice_is_not_waited_for(play: Any, joins: Any) -> None:
    run = warming(play, 3, rounds_per_epoch=1)
    late = run.state.epoch.clients[2].id
    for expected in (2, 4):
        for slot in (0, 1):
            run.do(run.ready(slot))
        assert run.phase == "Warmup"
        later(run, 25)
        assert (run.phase, scores(run)) == ("RoundTrain", {late.signer: expected})
        run.play_epoch()
        run.cool_down()
        run.do(joins(late))
        run.tick(after=3)
    assert run.state.slot_of(late) == 2
    run.do(run.ready(0))
    assert run.phase == "Warmup"
    assert run.do(run.ready(1))[-1] == RoundStarted(epoch=2, height=0, step=3, drain=False)
    assert scores(run) == {late.signer: 6}
    assert run.state.healthy_slots == (0, 1)


def test_who_is_not_waited_for_may_still_be_ready_which_counts_for_it(play: Any) -> None:
    run = warming(play, 3)
    run.state = replace(run.state, unready=(Unready(signer(run, 2), 6),))
    run.do(run.ready(2))
    run.do(run.ready(0))
    assert run.phase == "Warmup"
    run.do(run.ready(1))
    assert (run.round.slots, scores(run)) == ((0, 1, 2), {signer(run, 2): 5})


def test_who_is_late_in_every_other_warmup_is_not_waited_for_at_last(play: Any, joins: Any) -> None:
    """If one warmup in which it is ready made all good, it could hold up every other one."""
    run = warming(play, 3, rounds_per_epoch=1)
    late = run.state.epoch.clients[2].id
    for number, expected in enumerate((2, 1, 3)):
        for slot in (0, 1):
            run.do(run.ready(slot))
        assert run.phase == "Warmup"
        run.do(run.ready(2)) if number == 1 else later(run, 25)
        assert (run.phase, scores(run)) == ("RoundTrain", {late.signer: expected})
        run.play_epoch()
        run.cool_down()
        if run.state.slot_of(late) is None or late not in run.state.pending:
            run.do(joins(late))
        run.tick(after=3)
    run.do(run.ready(0))
    assert run.do(run.ready(1))[-1] == RoundStarted(epoch=3, height=0, step=4, drain=False)


def test_one_time_is_waited_for(play: Any) -> None:
    run = warming(play, 3)
    run.state = replace(run.state, unready=(Unready(signer(run, 2), 1),))
    run.do(run.ready(0))
    run.do(run.ready(1))
    assert run.phase == "Warmup"
    run.do(run.ready(2))
    assert run.state.unready == ()


def test_where_nobody_is_waited_for_somebody_must_be_ready(play: Any) -> None:
    run = warming(play, 2)
    run.state = replace(run.state, unready=tuple(Unready(signer(run, slot), 3) for slot in range(2)))
    assert later(run, 50) == []
    assert run.phase == "Warmup"
    assert run.do(run.ready(0))[-1] == STARTED


def test_a_warmup_that_is_given_up_is_counted_too(play: Any) -> None:
    run = warming(play, 4, min_clients=4, init_min_clients=4)
    ends = [signer(run, slot) for slot in range(4)]
    late_once(run, 1, 3)
    assert run.phase == "WaitingForMembers"
    assert run.state.unready == (Unready(ends[1], 2), Unready(ends[3], 2))


def test_who_withdrew_is_not_counted(play: Any) -> None:
    run = warming(play, 3)
    run.withdraw(2)
    late_once(run, 1)
    assert list(scores(run)) == [signer(run, 1)]


@pytest.mark.parametrize("before", [4, 5, 6, 255])
def test_scores_stop_at_6(play: Any, before: int) -> None:
    run = warming(play, 3)
    run.state = replace(run.state, unready=(Unready(signer(run, 2), before),))
    run.do(run.ready(0))
    run.do(run.ready(1))
    assert scores(run) == {signer(run, 2): 6}


def test_the_newest_256_are_remembered(play: Any) -> None:
    run = warming(play, 3)
    strangers = tuple(Unready(bytes([1, place]) + bytes(30), 1) for place in range(256))
    run.state = replace(run.state, unready=strangers)
    late_once(run, 2)
    assert run.state.unready == (*strangers[1:], Unready(signer(run, 2), 2))


def test_who_is_late_again_moves_to_the_end_of_the_list(play: Any) -> None:
    run = warming(play, 3)
    stranger = Unready(bytes(32), 1)
    run.state = replace(run.state, unready=(Unready(signer(run, 2), 1), stranger))
    late_once(run, 2)
    assert run.state.unready == (stranger, Unready(signer(run, 2), 3))


def test_who_lacks_the_model_that_others_have_is_late_like_any_other(play: Any) -> None:
    """Else it would hold up each warmup with these words."""
    run = warming(play, 3)
    run.do(run.lacking(2))
    late_once(run, 1, 2)
    assert run.round.slots == (0,)
    assert list(scores(run)) == [signer(run, 1), signer(run, 2)]


def test_who_lacks_the_model_is_not_late_where_nobody_could_begin(play: Any) -> None:
    run = warming(play, 4, min_clients=4, init_min_clients=4)
    run.do(run.lacking(2))
    late_once(run, 1, 2)
    assert run.phase == "WaitingForMembers"
    assert list(scores(run)) == [signer(run, 1)]
