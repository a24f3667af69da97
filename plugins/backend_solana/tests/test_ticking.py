"""Whose turn it is to let time pass."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_backend_solana.following.chain_clock import ChainClock
from psyche_backend_solana.layouts.beacon import LATE_SECONDS, Beacon
from psyche_backend_solana.sending import ticker
from psyche_backend_solana.sending.member_commands import wants_tick
from psyche_core.coordinator import apply
from psyche_core.coordinator.commands import Join, Tick, WarmupWitness, Withdraw
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.testing.backend import small_state
from psyche_core.types import ClientState, NodeIdentity, RunState
from psyche_core.wire.messages import sign_join
from psyche_core.wire.signing import SecretKey


def signer(number: int) -> bytes:
    return hashlib.sha256(b"member %d" % number).digest()


def joined(members: int) -> CoordinatorState:
    state = small_state(clients=1)
    for number in range(members):
        key = SecretKey(signer(number))
        join = Join(NodeIdentity(signer(number), key.public), sign_join(key, state.instance, signer(number)))
        state, _ = apply(state, join, state.since, 1)
    return state


def warming(members: int) -> CoordinatorState:
    state = joined(members)
    return apply(state, Tick(), state.since + 10, 1)[0]


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 2**63))
def test_everybody_has_a_turn_and_one_is_first(members: int, nonce: int) -> None:
    state = joined(members)
    turns = ticker.order(state, nonce)
    assert sorted(turns) == sorted(signer(number) for number in range(members))
    waits = [ticker.tick_delay(state, nonce, who) for who in turns]
    assert waits[0] == 0.0
    assert waits == sorted(waits)
    assert len(waits) == 1 or waits[1] >= ticker.FIRST_TURN_SECONDS
    assert ticker.tick_delay(state, nonce, signer(999)) >= waits[-1]


def test_turns_change_with_the_nonce() -> None:
    state = joined(8)
    assert len({ticker.order(state, nonce)[0] for nonce in range(60)}) > 4


def test_the_healthy_come_before_the_others() -> None:
    state = warming(5)
    ill = {1, 3}
    clients = tuple(
        replace(client, state=ClientState.Dropped) if slot in ill else client for slot, client in enumerate(state.epoch.clients)
    )
    state = replace(state, epoch=replace(state.epoch, clients=clients))
    for nonce in range(20):
        assert set(ticker.order(state, nonce)[:3]) == {signer(0), signer(2), signer(4)}


def test_due_only_when_something_would_change() -> None:
    state = joined(2)
    assert not ticker.due(state, state.since)
    assert ticker.due(state, state.since + 10)
    assert not ticker.due(replace(state, run_state=RunState.Paused), state.since + 10)


def test_who_is_first_ticks_at_once_and_the_next_when_nothing_happens() -> None:
    state = joined(2)
    first, second = ticker.order(state, 5)
    late = state.since + 10
    one, other = ticker.TickSchedule(), ticker.TickSchedule()
    assert one.comes(state, 5, signer=first, now=late, local=100.0)
    assert not other.comes(state, 5, signer=second, now=late, local=100.0)
    assert not other.comes(state, 5, signer=second, now=late + 1, local=101.0)
    assert other.comes(state, 5, signer=second, now=late + 2, local=102.5)


def test_waiting_begins_anew_with_every_change() -> None:
    state = joined(2)
    late = state.since + 10
    turn = ticker.TickSchedule()
    turn.comes(state, 5, signer=b"x" * 32, now=late, local=0.0)
    assert turn.since == 0.0
    turn.comes(state, 6, signer=b"x" * 32, now=late, local=50.0)
    assert turn.since == 50.0
    turn.comes(state, 6, signer=b"x" * 32, now=state.since, local=60.0)
    turn.comes(state, 6, signer=b"x" * 32, now=late, local=70.0)
    assert turn.since == 70.0


def test_who_is_first_ticks_for_a_hash_that_nobody_has_taken_in_for_a_minute() -> None:
    state = warming(2)
    first, second = ticker.order(state, 5)
    awaited = Beacon(100)
    for beacon, age, comes in (
        (awaited, LATE_SECONDS - 1, False),
        (awaited, LATE_SECONDS, True),
        (Beacon(), LATE_SECONDS, False),
        (Beacon(100, b"h" * 32), LATE_SECONDS, False),
    ):
        now = state.since + age
        assert not ticker.due(state, now)
        assert ticker.TickSchedule().comes(state, 5, signer=first, now=now, local=9.0, beacon=beacon) is comes
    assert not ticker.TickSchedule().comes(state, 5, signer=second, now=state.since + LATE_SECONDS, local=9.0, beacon=awaited)
    assert not ticker.misses_hash(replace(state, run_state=RunState.Paused), awaited, state.since + LATE_SECONDS)


def test_a_command_that_leaves_something_to_do_takes_the_tick_along() -> None:
    state = warming(1)
    now = state.since + 1
    (client,) = state.epoch.clients
    assert wants_tick(state, Withdraw(client.id), now)  # nobody is left: the epoch is to be given up
    assert not wants_tick(state, WarmupWitness(client.id, 0, 0, b"m" * 32), now)  # starts the round by itself
    assert not wants_tick(warming(2), Withdraw(client.id), now)
    assert not wants_tick(state, WarmupWitness(client.id, 0, 3, bytes(32)), now)  # would be refused
    assert not wants_tick(state, Withdraw(client.id), now + 10_000)  # a tick is due anyway, whoever's turn it is


def test_the_chains_clock_goes_on_with_ours_and_never_back() -> None:
    clock = ChainClock(1_000, at=50.0)
    assert [clock.now(local) for local in (49.0, 50.0, 50.9, 51.0, 110.5)] == [1_000, 1_000, 1_000, 1_001, 1_060]
