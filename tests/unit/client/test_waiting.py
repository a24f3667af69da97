"""How long a member waits for the others (protocol F16): budgets in seconds, in made-up rounds of four and of eight."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from psyche_core.client.machine.rounds.round import RoundRecord
from psyche_core.client.machine.rounds.waiting import (
    BEHIND_ALL_FRACTION,
    COMBINED_FRACTION,
    GRACE_ROUNDS,
    LAST_WAITER_FRACTION,
    MIN_GRACE_SECONDS,
    Awaited,
    Kind,
    WaitingBudget,
)
from psyche_core.coordinator.state import Round

LATE = 3
"""The slot that is slower than the others."""


def finished(moment: float, *, but: Mapping[int, float | None], members: int = 4, kind: Kind = "finished") -> Awaited:
    """Everybody is done at one moment, some at others or never."""
    times = {slot: but.get(slot, moment) for slot in range(members)}
    return Awaited(kind, {slot: time for slot, time in times.items() if time is not None}, tuple(range(members)))


def results(moment: float, *, but: Mapping[int, float | None], members: int = 4) -> Awaited:
    return finished(moment, but=but, members=members, kind="results")


def played(rounds: int = 4, *, length: float = 10.0) -> WaitingBudget:
    """Budgets after some rounds in which everybody was done at the same time."""
    budget = WaitingBudget(began=0.0)
    for height in range(rounds):
        opened = height * length
        budget.charge(finished(opened + length, but={}), opened=opened, now=opened + length)
    return budget


def waits_until(budget: WaitingBudget, what: Awaited, *, opened: float) -> float:
    """The last moment, to a tenth of a second, at which the late slot is still waited for."""
    moment = opened
    while moment < 1000.0 and budget.waited_for([LATE], what, opened=opened, now=moment):
        moment += 0.1
    return moment


def test_one_slot_is_waited_for_twice_a_round_and_a_share_of_the_epochs_time() -> None:
    until = waits_until(played(), finished(50.0, but={LATE: None}), opened=40.0)
    assert until == pytest.approx((50.0 + GRACE_ROUNDS * 10.0) / (1 - BEHIND_ALL_FRACTION), abs=0.3)


def test_results_and_finished_together_have_less_than_two_budgets() -> None:
    budget = played(40)
    budget.charge(results(410.0, but={LATE: 470.0}), opened=400.0, now=480.0)  # 60 s of the 92 s that it may be late by
    asked = finished(490.0, but={LATE: None})
    together = waits_until(budget, asked, opened=480.0)
    assert together == pytest.approx((490.0 + GRACE_ROUNDS * 10.0 - 60.0) / (1 - COMBINED_FRACTION), abs=0.3)
    assert together < waits_until(played(40), asked, opened=480.0)


def test_who_stretches_a_round_is_not_waited_for_longer_for_it() -> None:
    """Twice the present round's time was allowed: one that held it up by 19 s with its result was given 38 s more."""
    budget = played()
    until = waits_until(budget, finished(70.0, but={LATE: None}), opened=40.0)
    assert until == pytest.approx((70.0 + GRACE_ROUNDS * 10.0) / (1 - BEHIND_ALL_FRACTION), abs=0.3)

    budget.charge(finished(70.0, but={LATE: 71.0}), opened=40.0, now=71.0)
    until = waits_until(budget, results(100.0, but={LATE: None}), opened=71.0)
    assert until < 100.0 + GRACE_ROUNDS * 10.0 + BEHIND_ALL_FRACTION * 150.0


def test_a_bad_moment_is_forgiven_and_always_slower_is_not() -> None:
    once, always = played(1), played(1)
    for height in range(1, 30):
        opened = 13.0 * height
        late = opened + 13.0
        always.charge(finished(opened + 10.0, but={LATE: late}), opened=opened, now=late)
        once.charge(finished(opened + 10.0, but={LATE: late if height == 1 else opened + 10.0}), opened=opened, now=late)
    asked = finished(400.0, but={LATE: None})
    assert once.waited_for([LATE], asked, opened=390.0, now=430.0)
    assert not always.waited_for([LATE], asked, opened=390.0, now=401.0)


def test_several_slow_ones_are_held_against_two_thirds() -> None:
    budget = WaitingBudget(began=0.0)
    for height in range(20):
        opened = 20.0 * height
        slow = finished(opened + 10.0, but={3: opened + 20.0, 4: opened + 20.0}, members=8)
        budget.charge(slow, opened=opened, now=opened + 20.0)
    asked = finished(410.0, but={3: None, 4: None}, members=8)
    assert budget.waited_for([3, 4], asked, opened=400.0, now=420.0) == {3, 4}


def test_short_rounds_have_a_second_at_least() -> None:
    assert waits_until(played(1, length=0.01), finished(0.02, but={LATE: None}), opened=0.01) >= MIN_GRACE_SECONDS


def test_nobody_is_late_while_fewer_than_most_are_done() -> None:
    alone = Awaited("finished", {1: 50.0}, tuple(range(4)))
    assert played().waited_for([0, LATE], alone, opened=40.0, now=500.0) == {0, LATE}


def test_nobody_held_up_who_had_not_done_its_own_work() -> None:
    """Results are needed once our own training is as good as done; before that nobody waits for them."""
    record = RoundRecord(
        epoch=0,
        round=Round(height=1, step=2, seed=7, slots=(0, 1), batches=()),
        shares={},
        trainers=(0, 1),
        witnesses=(0, 1),
        opened_at=5.0,
    )
    assert record.ready_at == 5.0, "no share of our own"
    record.own_started = True
    assert record.ready_at == float("inf")
    record.nearly_done_at = 8.0
    assert record.ready_at == 8.0
    record.own_done, record.own_done_at = True, 9.0
    assert record.ready_at == 9.0


KEPT_BACK = 0
"""The slot whose result is kept from the late one."""


def alone_from(budget: WaitingBudget, what: Awaited, *, opened: float, witnesses: int, lacking: int = KEPT_BACK) -> float:
    """The first moment, to a tenth of a second, at which the late slot stops waiting for a result that everybody else has."""
    needed = results(opened + 1.0, but={lacking: None}, members=8)
    moment = opened
    while moment < 1000.0 and not budget.should_stop_waiting(
        [lacking], needed, what, own=LATE, witnesses=witnesses, opened=opened, now=moment
    ):
        moment += 0.1
    return moment


def test_who_waits_alone_for_one_that_was_late_for_long_goes_on_soon() -> None:
    budget = played()
    budget.charge(results(41.0, but={KEPT_BACK: 59.0}, members=8), opened=40.0, now=60.0)
    until = alone_from(budget, finished(70.0, but={LATE: None}, members=8), opened=60.0, witnesses=8)
    assert until == pytest.approx(70.0 + LAST_WAITER_FRACTION * 10.0, abs=0.2)


def test_who_lacks_a_result_of_somebody_that_was_never_late_goes_on_waiting() -> None:
    """Its own line may be slow: two liars who deny what it lacks would have that trainer dropped."""
    until = alone_from(played(), finished(50.0, but={LATE: None}, members=8), opened=40.0, witnesses=8)
    assert until > 50.0 + 4 * LAST_WAITER_FRACTION * 10.0


def test_who_waits_with_another_goes_on_waiting() -> None:
    """A quorum may not do without both of them and a liar: honest trainers would be dropped for what these two lack."""
    budget = played(40)
    budget.charge(results(401.0, but={KEPT_BACK: 500.0}, members=8), opened=400.0, now=500.0)
    both = finished(510.0, but={LATE: None, 5: None}, members=8)
    until = alone_from(budget, both, opened=500.0, witnesses=8)
    assert until > 510.0 + GRACE_ROUNDS * 10.0


def test_who_waits_with_one_that_nobody_waits_for_goes_on() -> None:
    budget = played(40)
    budget.charge(finished(410.0, but={5: 5000.0}, members=8), opened=400.0, now=5000.0)
    budget.charge(results(401.0, but={KEPT_BACK: 5000.0}, members=8), opened=400.0, now=5000.0)
    both = finished(5010.0, but={LATE: None, 5: None}, members=8)
    needed = results(5001.0, but={KEPT_BACK: None}, members=8)
    assert budget.should_stop_waiting([KEPT_BACK], needed, both, own=LATE, witnesses=8, opened=5000.0, now=5012.0)


def test_where_a_quorum_needs_every_word_nobody_goes_on_alone() -> None:
    budget = played()
    budget.charge(results(41.0, but={KEPT_BACK: 59.0}, members=8), opened=40.0, now=60.0)
    assert alone_from(budget, finished(70.0, but={LATE: None}), opened=60.0, witnesses=4) >= 1000


def test_going_on_alone_leaves_a_members_budget_as_it_was() -> None:
    """The share is below the one by which a slot may be late in the epoch, so a liar cannot use up another's."""
    assert LAST_WAITER_FRACTION < BEHIND_ALL_FRACTION
