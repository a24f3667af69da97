"""Balances that were paid out are freed, so that newcomers can join again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from psyche_core.coordinator.commands import SetFutureEpochRates, Settle
from psyche_core.coordinator.state import MAX_ACCOUNTS, Account
from psyche_core.errors import CoordinatorError
from psyche_core.types import RunState


def settle(run: Any, signer: bytes) -> None:
    """Settle, in the books of the test as well."""
    del run.paid[signer]
    run.do(Settle(signer))


def test_a_balance_that_was_paid_out_makes_room_for_a_newcomer(play: Any, members: Any) -> None:
    run = play(min_clients=1, init_min_clients=2)
    accounts = tuple(Account(number.to_bytes(32, "big"), earned=9) for number in range(1, MAX_ACCOUNTS + 1))
    run.state = replace(run.state, accounts=accounts)
    run.paid = {account.signer: (9, 0) for account in accounts}
    with pytest.raises(CoordinatorError, match="512 balances"):
        run.join(0)
    settle(run, accounts[300].signer)
    assert len(run.state.accounts) == MAX_ACCOUNTS - 1
    run.join(0)
    assert run.state.pending == (members(0),)
    with pytest.raises(CoordinatorError, match="511 balances"):
        run.join(1)


def test_nobody_is_settled_that_may_still_earn_or_be_slashed(play: Any, members: Any) -> None:
    run = play(rounds_per_epoch=2, min_clients=2, init_min_clients=3)
    run.do(SetFutureEpochRates(earning_total_shared=90))
    run.start(3)
    run.play_epoch()
    run.cool_down()
    assert run.state.run_state is RunState.WaitingForMembers
    run.refused(Settle(members(0).signer), "InvalidSettlement")
    run.join(3)
    run.withdraw(0)
    run.refused(Settle(members(0).signer), "InvalidSettlement")
    run.tick(after=1000)
    assert members(0) not in [client.id for client in run.state.epoch.clients]
    settle(run, members(0).signer)
    assert [account.earned for account in run.state.accounts] == [30, 30]
    run.refused(Settle(members(0).signer), "InvalidSettlement")
