"""Members take turns at ticking, and what an address or a restart costs."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest
from model_chain import Landed, ModelChain
from model_chain_rpc import open_chain
from model_runs import QUICK, TIMEOUT, backend_of, make_run, wallet_of
from solders.pubkey import Pubkey
from solders.transaction import Transaction

from plugins.backend_solana.tests.backend_parts import KEYS, at, pending
from psyche_backend_solana import backend as backend_module
from psyche_backend_solana.backend import PollIntervals
from psyche_backend_solana.following.watcher import WatcherIntervals
from psyche_backend_solana.layouts import authorizer
from psyche_backend_solana.layouts import coordinator as program
from psyche_backend_solana.layouts.beacon import LATE_SECONDS
from psyche_core.coordinator.commands import Withdraw
from psyche_core.testing.backend import in_phase, small_state, until
from psyche_core.types import RunState

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def ticks(chain: ModelChain) -> list[Pubkey]:
    """Who paid for the ticks that there were."""
    found = []
    for record in chain.landed:
        message = Transaction.from_bytes(record.raw).message
        if any(bytes(instruction.data) == bytes([program.Number.tick]) for instruction in message.instructions):
            found.append(message.account_keys[0])
    return found


async def test_one_tick_is_paid_for_by_three_members() -> None:
    state = small_state(clients=3)
    async with open_chain(unix=state.since) as chain, AsyncExitStack() as stack:
        await make_run(chain, state)
        backends = [await stack.enter_async_context(backend_of(chain, key)) for key in KEYS]
        for backend in backends:
            await backend.join(b"x", timeout=TIMEOUT)
        for backend in backends:
            await until(backend, pending(3))
        chain.unix += 3
        for backend in backends:
            await until(backend, in_phase(RunState.Warmup))
        assert len(ticks(chain)) == 1


async def test_when_the_first_does_not_tick_the_next_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyche_backend_solana.sending.ticker.FIRST_TURN_SECONDS", 0.2)
    state = small_state(clients=3)
    lazy = PollIntervals(tick=3600.0, addresses=QUICK.addresses, watcher=QUICK.watcher)
    async with open_chain(unix=state.since) as chain, AsyncExitStack() as stack:
        await make_run(chain, state)
        sleepers = [await stack.enter_async_context(backend_of(chain, key, intervals=lazy)) for key in KEYS[:2]]
        awake = await stack.enter_async_context(backend_of(chain, KEYS[2]))
        for backend in (*sleepers, awake):
            await backend.join(b"x", timeout=TIMEOUT)
        chain.unix += 3
        await until(awake, in_phase(RunState.Warmup))
        assert ticks(chain) == [wallet_of(KEYS[2]).pubkey]


async def test_one_member_ticks_for_the_next_seed_in_a_phase_in_which_nobody_sends_anything() -> None:
    """The chain forgets the hash after some 200 s, and who spoke first then could choose another."""
    state = small_state(clients=2)
    async with open_chain(unix=state.since) as chain, AsyncExitStack() as stack:
        run = await make_run(chain, state)
        backends = [await stack.enter_async_context(backend_of(chain, key)) for key in KEYS[:2]]
        for backend in backends:
            await backend.join(b"x", timeout=TIMEOUT)
        for backend in backends:
            await until(backend, pending(2))
        chain.unix += 3
        for backend in backends:
            await until(backend, in_phase(RunState.Warmup))
        assert chain.account(run.account).beacon.pending
        assert len(ticks(chain)) == 1
        chain.next_slot(150)
        chain.unix += LATE_SECONDS
        with anyio.fail_after(TIMEOUT):
            while not chain.account(run.account).beacon.known:
                await anyio.sleep(0.02)
        found = chain.account(run.account)
        assert found.state is not None
        assert found.state.run_state is RunState.Warmup
        assert len(ticks(chain)) == 2


async def test_a_clock_that_stands_still_on_the_chain_costs_no_fees() -> None:
    """By our own seconds a tick would be due; the chain's clock is read before anything is paid."""
    state = small_state(clients=1)
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state)
        intervals = PollIntervals(tick=0.02, addresses=1.0, watcher=WatcherIntervals(calm=60.0, alert=60.0))
        async with backend_of(chain, KEYS[0], intervals=intervals) as backend:
            await backend.join(b"a", timeout=TIMEOUT)
            await until(backend, pending(1))
            reads = chain.providers[0].calls["getMultipleAccounts"]
            with anyio.fail_after(TIMEOUT):
                while chain.providers[0].calls["getMultipleAccounts"] == reads:  # our own seconds pass
                    await anyio.sleep(0.05)
            assert ticks(chain) == []


async def test_who_leaves_last_gives_the_epoch_up_in_the_same_transaction() -> None:
    state = small_state(clients=1)
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state)
        async with backend_of(chain, KEYS[0]) as backend:
            await backend.join(b"x", timeout=TIMEOUT)
            await until(backend, pending(1))
            chain.unix += 3
            await until(backend, in_phase(RunState.Warmup))
            await backend.send(Withdraw(backend.identity), timeout=TIMEOUT)
            await until(backend, in_phase(RunState.WaitingForMembers))
            assert len(ticks(chain)) == 2
            assert len(Transaction.from_bytes(chain.landed[-1].raw).message.instructions) == 3


async def test_a_tick_that_is_not_due_keeps_no_command_from_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tick goes along where one seems to be left to do; somebody else may have done it by then, and a chain refuses it."""
    monkeypatch.setattr(backend_module, "wants_tick", lambda *_: True)
    async with open_chain(unix=1_700_000_000) as chain:
        await make_run(chain, small_state(clients=3))
        async with backend_of(chain, KEYS[0]) as backend:
            await backend.join(b"x", timeout=TIMEOUT)
            await until(backend, pending(1))
            await backend.send(Withdraw(backend.identity), timeout=TIMEOUT)
            await until(backend, pending(0))


async def test_a_renewed_address_is_looked_for_at_once() -> None:
    """The state does not say that an address is new; a command that changed nothing may have been a join."""
    state = small_state(clients=3)
    patient = PollIntervals(tick=QUICK.tick, addresses=3600.0, renewals=QUICK.renewals, watcher=QUICK.watcher)
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state)
        async with backend_of(chain, KEYS[0]) as mover, backend_of(chain, KEYS[1], intervals=patient) as watching:
            for address in (b"old", b"new", b"newer"):
                await mover.join(address, timeout=TIMEOUT)
                await until(watching, at(mover.identity.signer, address))


async def test_strangers_who_fill_the_history_hide_nobodys_address() -> None:
    """However often they name the run and the members: no history is read, and three calls tell of everybody."""
    state = small_state()
    async with open_chain(unix=state.since) as chain:
        run = await make_run(chain, state)
        async with backend_of(chain, KEYS[0]) as mover, backend_of(chain, KEYS[1]) as other:
            await mover.join(b"x" * 1024, timeout=TIMEOUT)
            await other.join(b"y", timeout=TIMEOUT)
            spam = [
                Landed(str(number), chain.slot, None, b"", [run.instance, run.account, wallet_of(KEYS[0]).pubkey])
                for number in range(5000)
            ]
            chain.landed += spam
            async with backend_of(chain, KEYS[2]) as late:
                chain.providers[0].calls.clear()
                update = await until(late, lambda update: len(update.addresses) == 2)
                assert update.addresses == {mover.identity.signer: b"x" * 1024, other.identity.signer: b"y"}
            assert not {"getSignaturesForAddress", "getTransaction"} & chain.providers[0].calls.keys()


async def test_an_address_is_written_once_and_costs_nothing_after_a_restart() -> None:
    state = small_state()
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state)
        sent = []
        for address in (b"a", b"a", b"b"):
            before = len(chain.landed)
            async with backend_of(chain, KEYS[0]) as backend:
                await backend.join(address, timeout=TIMEOUT)
                await until(backend, at(backend.identity.signer, address))
            sent.append(len(chain.landed) - before)
        assert sent == [2, 1, 2]


async def test_an_address_that_goes_with_another_transport_key_is_none() -> None:
    """Left by the same wallet in an earlier life, or by a member that has changed its key since."""
    state = small_state()
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state)
        async with backend_of(chain, KEYS[0]) as mover, backend_of(chain, KEYS[1]) as watching:
            await mover.join(b"a", timeout=TIMEOUT)
            await until(watching, at(mover.identity.signer, b"a"))
        for place, kept in chain.accounts.items():
            if mover.identity.p2p in kept.data[authorizer.BYTES :]:
                other = kept.data.replace(mover.identity.p2p, b"o" * 32)
                chain.accounts[place] = type(kept)(kept.lamports, kept.owner, other)
        async with backend_of(chain, KEYS[2]) as late:
            update = await until(late, pending(1))
            assert update.addresses == {}
