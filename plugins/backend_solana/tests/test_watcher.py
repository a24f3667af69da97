"""The watcher alone: what is believed of what was read."""

from __future__ import annotations

import pytest
from model_chain_rpc import open_chain
from model_runs import OWNER, TIMEOUT, make_run

from psyche_backend_solana.following.chain_clock import ChainClock
from psyche_backend_solana.following.watcher import AccountReading, Watcher
from psyche_backend_solana.layouts import coordinator as program
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.sending.sender import Sender
from psyche_core.errors import BackendClosed, WireError
from psyche_core.testing.backend import START_TIME, small_state

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_only_a_newer_account_is_passed_on() -> None:
    readings: list[AccountReading] = []
    clocks: list[ChainClock] = []
    async with open_chain(unix=START_TIME) as chain, Rpc([chain.providers[0].endpoint]) as rpc:
        run = await make_run(chain, small_state())
        watching = Watcher(rpc, run, on_reading=readings.append, on_clock=clocks.append)
        assert await watching.read() == readings[0]
        assert await watching.read() is None
        stale = chain.accounts[run.account]
        await Sender(rpc, OWNER).send(program.set_future_epoch_rates(run, authority=OWNER.pubkey), timeout=TIMEOUT)
        chain.unix += 5
        newest = await watching.read()
        assert newest is not None
        assert newest.account.nonce == readings[0].account.nonce + 1
        chain.accounts[run.account] = stale  # an endpoint that is behind
        assert await watching.read() is None
        assert [reading.account.nonce for reading in readings] == [newest.account.nonce - 1, newest.account.nonce]
        assert [clock.unix for clock in clocks] == [START_TIME, START_TIME, START_TIME + 5, START_TIME + 5]


async def test_another_programs_account_is_never_believed() -> None:
    async with open_chain(unix=START_TIME) as chain, Rpc([chain.providers[0].endpoint]) as rpc:
        run = await make_run(chain, small_state())
        readings: list[AccountReading] = []
        watching = Watcher(rpc, run, on_reading=readings.append, on_clock=lambda clock: None)
        other = program.Run(program.instance_address("other")[0], run.account)
        with pytest.raises(WireError, match="belongs to another run"):
            await Watcher(rpc, other, on_reading=readings.append, on_clock=lambda clock: None).read()
        kept = chain.accounts[run.account]
        chain.accounts[run.account] = type(kept)(kept.lamports, OWNER.pubkey, kept.data)
        with pytest.raises(WireError, match="this is no coordinator account"):
            await watching.read()
        del chain.accounts[run.account]
        with pytest.raises(BackendClosed, match="closed the run"):
            await watching.read()
        assert readings == []
