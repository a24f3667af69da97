"""F12: what an epoch pays, to whom, once, whatever ended it; and who can be paid at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.coordinator.commands import EpochEnded, Pause, RewardsShared, SetFutureEpochRates, Withdraw
from psyche_core.coordinator.rewards import MAX_POINTS, rewards_shared
from psyche_core.coordinator.state import MAX_ACCOUNTS, Account, Client, Epoch, EpochRates
from psyche_core.types import ClientState, NodeIdentity


def paying(play: Any, clients: int, *, earn: int = 1000, slash: int = 7, **config: Any) -> Any:
    """A run whose first epoch pays, in round 0."""
    run = play(**config)
    run.do(SetFutureEpochRates(earning_total_shared=earn, slashing_per_client=slash))
    return run.start(clients)


def balances(run: Any) -> dict[bytes, int]:
    return {account.signer: account.earned for account in run.state.accounts}


def test_accepted_rounds_share_the_pool_and_fractions_stay_in_it(play: Any, members: Any) -> None:
    run = paying(play, 3, rounds_per_epoch=3)
    run.play_round()
    run.play_round(seen=[0, 2])
    run.play_epoch()
    assert run.cool_down() == [
        RewardsShared(epoch=0, earned=((0, 375), (1, 250), (2, 375)), slashed=()),
        EpochEnded(epoch=0, success=True),
    ]
    assert balances(run) == {members(0).signer: 375, members(1).signer: 250, members(2).signer: 375}
    assert [account.signer for account in run.state.accounts] == sorted(members(number).signer for number in range(3))


def test_240_clients_get_the_floor_of_their_share(play: Any) -> None:
    """Reference scenario 7.2.5: 240 clients, everybody may witness, four rounds, floor share for each."""
    run = paying(play, 240, earn=1_000_003, rounds_per_epoch=4, global_batch_size_start=240, global_batch_size_end=240)
    run.play_epoch()
    (shared, _) = run.cool_down()
    assert [points for _, points in shared.earned] == [1_000_003 // 240] * 240


def test_who_left_or_was_dropped_is_paid_for_what_was_accepted(play: Any, members: Any) -> None:
    run = paying(play, 4, earn=90, rounds_per_epoch=3)
    run.play_round()
    run.play_round()
    run.withdraw(1)
    run.play_round()
    run.play_round(seen=[0, 2, 3])
    run.cool_down()
    assert [client.accepted_rounds for client in run.state.epoch.clients] == [3, 2, 3, 3]
    assert balances(run)[members(1).signer] == 90 * 2 // 11


def test_ejected_clients_earn_nothing_and_are_slashed(play: Any, members: Any) -> None:
    run = paying(play, 4, earn=100, slash=33, rounds_per_epoch=2)
    run.play_round()
    run.do(run.evidence(2, 0, by=0))
    run.play_epoch()
    events = run.cool_down()
    (shared,) = [event for event in events if isinstance(event, RewardsShared)]
    assert shared.slashed == ((2, 33),)
    assert [slot for slot, _ in shared.earned] == [0, 1, 3]
    slashed = {account.signer: account.slashed for account in run.state.accounts if account.slashed}
    assert slashed == {members(2).signer: 33}


def test_rates_are_fixed_when_the_epoch_starts(play: Any) -> None:
    run = paying(play, 2, earn=10, rounds_per_epoch=1)
    run.do(SetFutureEpochRates(earning_total_shared=500, slashing_per_client=1))
    assert run.state.epoch.rates == EpochRates(10, 7)
    run.play_epoch()
    assert run.cool_down()[0] == RewardsShared(epoch=0, earned=((0, 5), (1, 5)), slashed=())
    run.warm_up()
    assert run.state.epoch.rates == EpochRates(500, 1)
    run.play_epoch()
    run.cool_down()
    assert sorted(balances(run).values()) == [255, 255]


def test_none_keeps_a_rate_and_the_same_rates_change_nothing(play: Any) -> None:
    run = play()
    run.do(SetFutureEpochRates(earning_total_shared=5))
    run.do(SetFutureEpochRates(slashing_per_client=6))
    assert run.state.future_rates == EpochRates(5, 6)
    before = run.state
    run.do(SetFutureEpochRates(earning_total_shared=5))
    assert run.state is before


@pytest.mark.parametrize("wrong", [-1, 2**64, True, 1.0, "5"])
def test_rates_are_numbers_of_64_bits(play: Any, wrong: Any) -> None:
    run = play()
    run.refused(SetFutureEpochRates(earning_total_shared=wrong), "ConfigSanityCheckFailed")
    run.refused(SetFutureEpochRates(slashing_per_client=wrong), "ConfigSanityCheckFailed")
    run.do(SetFutureEpochRates(earning_total_shared=MAX_POINTS, slashing_per_client=0))


def test_an_epoch_that_was_cut_pays_what_was_accepted(play: Any) -> None:
    run = paying(play, 2, earn=10)
    run.play_round()
    run.play_round()
    run.tick(after=30)
    run.tick(after=11)
    assert run.state.epoch.ending is None  # nobody was left to state
    assert run.cool_down()[0] == RewardsShared(epoch=0, earned=((0, 5), (1, 5)), slashed=())


def test_an_epoch_without_an_accepted_round_pays_nobody(play: Any) -> None:
    run = paying(play, 2)
    run.tick(after=30)
    run.tick(after=11)
    assert run.cool_down() == [EpochEnded(epoch=0, success=True)]
    assert run.state.accounts == ()


def test_an_epoch_is_paid_once(play: Any) -> None:
    """Neither the ticks after its end, nor a warmup given up, nor a pause pays it again."""
    run = paying(play, 2, earn=10, rounds_per_epoch=1, min_clients=2, init_min_clients=2)
    run.play_epoch()
    run.cool_down()
    paid = run.state.accounts
    run.tick(after=3)
    assert run.phase == "Warmup"
    run.tick(after=20)
    assert run.phase == "WaitingForMembers"
    run.join(0, 1)
    run.tick(after=3)
    run.do(Pause())
    assert run.state.accounts == paid
    assert len(run.seen_events(RewardsShared)) == 1


def test_balances_stop_at_64_bits(play: Any, members: Any) -> None:
    run = paying(play, 1, earn=MAX_POINTS, rounds_per_epoch=1)
    run.play_epoch()
    once, _ = rewards_shared(run.state)
    twice, _ = rewards_shared(once)
    assert once.accounts == twice.accounts == (Account(members(0).signer, earned=MAX_POINTS),)


_clients = st.lists(st.tuples(st.integers(0, 2**20), st.sampled_from(list(ClientState))), max_size=12)


@settings(deadline=None)
@given(_clients, st.integers(0, MAX_POINTS), st.integers(0, MAX_POINTS))
def test_no_epoch_pays_more_than_its_pool(bare_state: Any, worked: Any, earn: int, slash: int) -> None:
    """Nobody ejected earns, nobody else is slashed, more rounds never earn less, and less than a point each is left over."""
    members = [
        Client(id=NodeIdentity(bytes([slot]) * 32, bytes(32)), accepted_rounds=rounds, state=state)
        for slot, (rounds, state) in enumerate(worked)
    ]
    epoch = Epoch(clients=tuple(members), rates=EpochRates(earn, slash))
    after, events = rewards_shared(replace(bare_state, epoch=epoch))
    shared = [event for event in events if isinstance(event, RewardsShared)]
    earned = dict(shared[0].earned) if shared else {}
    slashed = dict(shared[0].slashed) if shared else {}
    paid_rounds = [client.accepted_rounds for client in members if client.state is not ClientState.Ejected]
    if sum(paid_rounds):
        assert earn - len(members) < sum(earned.values()) <= earn
    else:
        assert earned == {}
    for slot, client in enumerate(members):
        ejected = client.state is ClientState.Ejected
        assert slashed.get(slot, 0) == (slash if ejected else 0)
        assert not (ejected and slot in earned)
        for other, rival in enumerate(members):
            if not ejected and rival.state is not ClientState.Ejected and client.accepted_rounds >= rival.accepted_rounds:
                assert earned.get(slot, 0) >= earned.get(other, 0)
    assert sum(account.earned for account in after.accounts) == sum(earned.values())


def test_a_run_holds_so_many_accounts_and_refuses_who_could_not_be_paid(play: Any, members: Any, joins: Any) -> None:
    run = play()
    holders = sorted(members(number).signer for number in range(100, 100 + MAX_ACCOUNTS - 2))
    run.state = replace(run.state, accounts=tuple(Account(signer, earned=1) for signer in holders))
    run.paid = dict.fromkeys(holders, (1, 0))
    run.join(0, 1)
    run.refused(joins(members(2)), "AccountsFull")
    run.join(0)  # pending already
    run.join(100)  # has an account
    run.do(Withdraw(members(1)))
    run.join(2)  # the place of another who never worked
    run.refused(joins(members(1)), "AccountsFull")


def test_a_place_is_kept_for_who_works_in_the_epoch_and_left_the_pending_list(play: Any, members: Any, joins: Any) -> None:
    run = paying(play, 2, rounds_per_epoch=2)
    holders = sorted(members(number).signer for number in range(100, 100 + MAX_ACCOUNTS - 2))
    run.state = replace(run.state, accounts=tuple(Account(signer, earned=1) for signer in holders))
    run.paid = dict.fromkeys(holders, (1, 0))
    run.play_round()
    run.withdraw(0)
    run.refused(joins(members(2)), "AccountsFull")
    run.join(0)
    run.play_epoch()
    run.cool_down()
    assert len(run.state.accounts) == MAX_ACCOUNTS
    run.refused(joins(members(2)), "AccountsFull")
