"""Where shares are checked, who is new, or leaves, is paid only once it has passed a check (F12)."""

from __future__ import annotations

from typing import Any

import pytest

from psyche_core.coordinator.commands import Pause, RewardsShared, SetFutureEpochRates
from psyche_core.types import ClientState
from tests.unit.coordinator.challenged_rounds import play_rounds


def test_nobody_is_paid_before_it_has_passed_a_check(play: Any) -> None:
    """New keys cost nothing: else a cheat would come as somebody new, and be gone before it is drawn."""
    run = play(0, verification_percent=50, rounds_per_epoch=16)
    run.do(SetFutureEpochRates(earning_total_shared=1000))
    run.start(6)
    play_rounds(run, 3)  # the first shares are drawn when the fourth round begins
    run.do(Pause())
    play_rounds(run, 10)
    run.cool_down()
    assert not run.seen_events(RewardsShared)
    assert run.state.accounts == ()


def test_who_was_paid_before_and_stays_is_paid_in_an_epoch_without_checks(play: Any, members: Any) -> None:
    run = play(0, verification_percent=50, rounds_per_epoch=16)
    run.do(SetFutureEpochRates(earning_total_shared=1000))
    run.start(6)
    play_rounds(run, 40)
    run.cool_down()
    run.join(6)
    run.warm_up()
    play_rounds(run, 2)
    run.withdraw(0)
    run.do(Pause())
    play_rounds(run, 10)
    run.cool_down()
    first, second = run.seen_events(RewardsShared)
    assert set(dict(first.earned)) == {0, 1, 2, 3, 4, 5}
    new = next(slot for slot, client in enumerate(run.state.epoch.clients) if client.id == members(6))
    left = next(slot for slot, client in enumerate(run.state.epoch.clients) if client.state is ClientState.Withdrawn)
    assert run.state.epoch.clients[new].accepted_rounds > 0
    assert run.state.epoch.clients[left].accepted_rounds > 0
    assert set(dict(second.earned)) == set(range(7)) - {new, left}


@pytest.mark.parametrize("after", [1, 12])
def test_who_leaves_is_paid_if_it_has_passed_a_check(play: Any, after: int) -> None:
    run = play(0, verification_percent=50, rounds_per_epoch=16)
    run.do(SetFutureEpochRates(earning_total_shared=1000))
    run.start(6)
    play_rounds(run, after)
    passed = bool(run.state.epoch.clients[0].standing.high)
    assert passed is (after > 1)
    assert run.state.epoch.clients[0].accepted_rounds >= after // 2
    run.withdraw(0)
    run.do(Pause()) if after == 1 else None
    play_rounds(run, 40)
    run.cool_down()
    shared = run.seen_events(RewardsShared)
    assert (0 in dict(shared[0].earned) if shared else False) is passed
