"""`psyche server run --points-per-epoch`: what an epoch shares, and whose balance makes room for newcomers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_runs import settings

from psyche_core.coordinator import apply
from psyche_core.coordinator.commands import Command, SetFutureEpochRates
from psyche_core.coordinator.rewards import has_account_for
from psyche_core.coordinator.state import MAX_ACCOUNTS, Account, Client, CoordinatorState, Epoch
from psyche_core.errors import ConfigError
from psyche_core.plugins import PluginRegistry
from psyche_core.server.points import ROOM, check_points, keep_room, set_points, settlement_due
from psyche_core.server.serving import serve_run
from psyche_core.telemetry.events import Started
from psyche_core.telemetry.sinks import EventBus
from psyche_core.testing.backend import small_state
from psyche_core.types import NodeIdentity


class Server:
    """A server's state, and the owner's commands that changed it."""

    def __init__(self, state: CoordinatorState) -> None:
        self.state = state
        self.submitted: list[Command] = []

    def submit(self, command: Command) -> None:
        self.submitted.append(command)
        self.state, _ = apply(self.state, command, 0, 0)


def member(number: int) -> NodeIdentity:
    key = number.to_bytes(32, "big")
    return NodeIdentity(key, key)


def crowded(*accounts: Account, here: int = 0, waiting: int = 0) -> CoordinatorState:
    """A run with these accounts, and members without one: keys from 10,000 on take part, from 20,000 on wait."""
    clients = tuple(Client(id=member(10_000 + number)) for number in range(here))
    pending = tuple(member(20_000 + number) for number in range(waiting))
    state = small_state()
    return replace(
        state, accounts=tuple(sorted(accounts, key=lambda one: one.signer)), epoch=Epoch(clients=clients), pending=pending
    )


def account(number: int, earned: int, slashed: int = 0) -> Account:
    return Account(number.to_bytes(32, "big"), earned=earned, slashed=slashed)


def test_the_smallest_balance_of_who_is_not_here_goes_first() -> None:
    many = [account(number, 1000 + number) for number in range(1, MAX_ACCOUNTS - ROOM)]
    present = account(10_000, 1)
    slashed = account(600, 5000, slashed=4900)
    state = crowded(*many, present, slashed, here=1)
    assert len(state.accounts) == MAX_ACCOUNTS - ROOM + 1
    command = settlement_due(state)
    assert command is not None
    assert command.signer == slashed.signer, "100 is less than 1001, and the member with 1 takes part"
    assert settlement_due(crowded(*many, present, here=1)) is None, "there is room"


def test_where_everybody_is_here_nobody_is_forgotten() -> None:
    accounts = [account(10_000 + number, 1) for number in range(256)]
    waiting = [account(20_000 + number, 1) for number in range(256)]
    state = crowded(*accounts, *waiting, here=256, waiting=256)
    assert settlement_due(state) is None


@given(away=st.integers(0, MAX_ACCOUNTS), here=st.integers(0, 120), waiting=st.integers(0, 120))
def test_after_it_newcomers_have_room(away: int, here: int, waiting: int) -> None:
    away = min(away, MAX_ACCOUNTS - here - waiting)  # no coordinator has more
    state = crowded(*(account(number, number % 7) for number in range(1, away + 1)), here=here, waiting=waiting)
    kept = {one.signer for one in state.accounts}
    while (command := settlement_due(state)) is not None:
        assert command.signer in kept
        state, _ = apply(state, command, 0, 0)
    assert len(state.accounts) + here + waiting + ROOM <= MAX_ACCOUNTS or not state.accounts
    assert has_account_for(state, bytes(32)), "so the next one that comes is not refused"


async def test_room_is_made_again_after_each_change() -> None:
    server = Server(crowded())
    changes = [anyio.Event()]
    async with anyio.create_task_group() as group:
        group.start_soon(keep_room, server, lambda: changes[-1])
        await anyio.wait_all_tasks_blocked()
        assert server.submitted == []
        server.state = crowded(*(account(number, number) for number in range(1, MAX_ACCOUNTS + 1)))
        changes.append(anyio.Event())
        changes[0].set()
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert len(server.submitted) == ROOM
    assert min(one.earned for one in server.state.accounts) == ROOM + 1


def test_epochs_that_begin_later_share_the_points() -> None:
    server = Server(crowded())
    set_points(server, 900)
    assert server.submitted == [SetFutureEpochRates(earning_total_shared=900, slashing_per_client=900)]
    assert server.state.future_rates.earning_total_shared == 900


def test_a_server_without_an_owner_s_commands_is_refused_in_one_sentence() -> None:
    class Chain:
        """A server that takes none."""

    server: Any = Chain()
    with pytest.raises(ConfigError, match="a server of the backend solana takes no rates from here"):
        check_points(server, backend="solana")


@pytest.mark.parametrize("points", [700, 0, None])
async def test_a_server_keeps_the_rate_in_the_run_s_state(local_testnet: Any, points: int | None) -> None:
    folder = local_testnet()
    given: dict[str, Any] = {} if points is None else {"points_per_epoch": points}
    options = settings(state=folder / "state.toml", data_config=folder / "data.toml", server_port=0, **given)
    started = anyio.Event()
    states: list[CoordinatorState] = []

    async def stop(server: Any, _report: EventBus) -> None:
        await started.wait()
        await anyio.wait_all_tasks_blocked()
        states.append(server.state)
        group.cancel_scope.cancel()

    report = EventBus(lambda event: started.set() if isinstance(event, Started) else None)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: serve_run(options, PluginRegistry.discover(), report, owner=stop))
    assert states[-1].future_rates.earning_total_shared == (points or 0)
