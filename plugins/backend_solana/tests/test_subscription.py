"""The websocket alone: it hears, it is lost, it comes back."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest
from model_chain_rpc import open_chain
from model_runs import OWNER, TIMEOUT, make_run

from psyche_backend_solana.following.subscription import Subscription
from psyche_backend_solana.layouts import coordinator as program
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_backend_solana.sending.sender import Sender
from psyche_core.testing.backend import START_TIME, small_state

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def wait_for(wanted: Callable[[], bool]) -> None:
    with anyio.fail_after(TIMEOUT):
        while not wanted():
            await anyio.sleep(0.01)


async def test_a_lost_websocket_is_opened_again() -> None:
    heard: list[int] = []
    async with open_chain(unix=START_TIME) as chain, anyio.create_task_group() as group:
        run = await make_run(chain, small_state())
        (provider,) = chain.providers
        listening = Subscription(provider.endpoint, run.account, on_nonce=heard.append)
        group.start_soon(listening.run)
        await wait_for(lambda: listening.listening)
        async with Rpc([provider.endpoint]) as rpc:
            await Sender(rpc, OWNER).send(program.set_future_epoch_rates(run, authority=OWNER.pubkey), timeout=TIMEOUT)
        await wait_for(lambda: heard == [chain.account(run.account).nonce])

        provider.shut()
        await wait_for(lambda: not listening.listening and not provider.is_open)
        await group.start(provider.run)
        await wait_for(lambda: listening.listening)
        async with Rpc([provider.endpoint]) as rpc:
            await Sender(rpc, OWNER).send(program.set_future_epoch_rates(run, authority=OWNER.pubkey), timeout=TIMEOUT)
        await wait_for(lambda: heard[-1] == chain.account(run.account).nonce)
        assert len(heard) == 2
        group.cancel_scope.cancel()


async def test_one_that_seems_deaf_is_given_up_for_another() -> None:
    async with open_chain(unix=START_TIME) as chain, anyio.create_task_group() as group:
        run = await make_run(chain, small_state())
        heard: list[int] = []
        listening = Subscription(chain.providers[0].endpoint, run.account, on_nonce=heard.append)
        group.start_soon(listening.run)
        await wait_for(lambda: listening.listening)
        listening.reopen()
        await wait_for(lambda: not listening.listening)
        await wait_for(lambda: listening.listening)
        group.cancel_scope.cancel()


async def test_what_is_no_websocket_is_tried_again_and_stops_nothing() -> None:
    async with open_chain(unix=START_TIME) as chain, anyio.create_task_group() as group:
        run = await make_run(chain, small_state())
        http_port = chain.providers[0].endpoint.http.rpartition(":")[2]
        for url in (f"ws://127.0.0.1:{http_port}", "ws://127.0.0.1:9"):
            listening = Subscription(Endpoint("http://x:1", url), run.account, on_nonce=lambda nonce: None)
            group.start_soon(listening.run)
        await anyio.sleep(0.5)
        assert not listening.listening
        group.cancel_scope.cancel()
