"""RPC providers that misbehave: every fault switched on and off while clients are connected, and one of two providers killed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, replace

import httpx2
import pytest
from localnet_parts import MANUAL, Rpc, RpcFailure, funded, paying, request
from solders.keypair import Keypair
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from psyche_backend_solana.localnet import Faults, FaultSwitch, LocalChain
from psyche_core.errors import ConfigError

OPEN = replace(MANUAL, allow_faults=True)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_latency_and_bad_statuses_come_and_go() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc, connect(chain.ws_url) as socket, asyncio.timeout(20):
        await socket.send(request("slotSubscribe"))
        await socket.recv()
        chain.faults.set(latency_ms=150)
        began = time.monotonic()
        await rpc("getSlot")
        assert time.monotonic() - began >= 0.15
        began = time.monotonic()
        await chain.advance_slots(1)
        await socket.recv()
        assert time.monotonic() - began >= 0.15
        for status in (429, 503, 404, 599):
            chain.faults.set(http_status=status, latency_ms=0)
            with pytest.raises(httpx2.HTTPStatusError) as caught:
                await rpc("getSlot")
            assert caught.value.response.status_code == status
            assert ("retry-after" in caught.value.response.headers) == (status in (429, 503))
        chain.faults.clear()
        assert chain.faults.now == Faults()
        assert await rpc("getSlot") == 2


async def test_requests_lost_before_and_after_they_are_carried_out() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc:
        payer, to = await funded(chain), Keypair().pubkey()
        blockhash = await rpc.blockhash()
        chain.faults.set(drop_share=1.0)
        with pytest.raises(httpx2.TransportError):
            await rpc.send(paying(payer, to, 1_000_000, blockhash))
        chain.faults.set(drop_share=0.0, lose_answer_share=1.0)
        with pytest.raises(httpx2.TransportError):
            await rpc.send(paying(payer, to, 2_000_000, blockhash))
        chain.faults.clear()
        assert await rpc.balance(to) == 2_000_000
        chain.faults.set(drop_share=0.5)
        lost = 0
        for _ in range(60):
            try:
                await rpc("getSlot")
            except httpx2.TransportError:
                lost += 1
        assert 15 < lost < 45


async def test_transactions_accepted_and_never_processed() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc:
        payer, to = await funded(chain), Keypair().pubkey()
        transaction = paying(payer, to, 1_000_000, await rpc.blockhash())
        chain.faults.set(swallow_share=1.0)
        signature = await rpc.send(transaction)
        assert (await rpc("getSignatureStatuses", [signature]))["value"] == [None]
        with pytest.raises(RpcFailure, match="custom program error"):
            await rpc.send(paying(payer, to, 10**18, await rpc.blockhash()))
        chain.faults.clear()
        assert await rpc.send(transaction) == signature
        assert await rpc.balance(to) == 1_000_000


async def test_blockhashes_that_expire_early_at_one_door_only() -> None:
    async with LocalChain(MANUAL) as chain:
        hasty = await chain.open_provider()
        hasty.faults.set(expire_blockhashes_after=2)
        async with Rpc(chain.rpc_url) as rpc, Rpc(hasty.rpc_url) as other:
            payer, to = await funded(chain), Keypair().pubkey()
            assert (await other("getLatestBlockhash"))["value"]["lastValidBlockHeight"] == 3
            blockhash = await rpc.blockhash()
            await chain.advance_slots(3)
            with pytest.raises(RpcFailure, match="Blockhash not found"):
                await other.send(paying(payer, to, 1_000_000, blockhash))
            await rpc.send(paying(payer, to, 1_000_000, blockhash))
            assert await other.balance(to) == 1_000_000


async def test_one_of_two_doors_is_killed_and_comes_back() -> None:
    async with LocalChain(MANUAL) as chain, asyncio.timeout(20):
        provider = await chain.open_provider()
        url = provider.rpc_url
        async with (
            Rpc(chain.rpc_url) as rpc,
            Rpc(url) as other,
            connect(provider.ws_url) as socket,
            connect(chain.ws_url) as steady,
        ):
            for one in (socket, steady):
                await one.send(request("slotSubscribe"))
                await one.recv()
            await provider.close()
            with pytest.raises(ConnectionClosed):
                await socket.recv()
            with pytest.raises(httpx2.TransportError):
                await other("getSlot")
            assert await rpc("getSlot") == 1
            await chain.advance_slots(1)
            assert "slotNotification" in str(await steady.recv())
            await provider.reopen()
            assert provider.rpc_url == url
            assert await other("getSlot") == 2
            async with connect(provider.ws_url) as again:
                provider.cut_websockets()
                with pytest.raises(ConnectionClosed):
                    await again.recv()


async def test_a_silent_websocket_says_nothing_not_even_pong() -> None:
    async with LocalChain(MANUAL) as chain, connect(chain.ws_url, ping_interval=None) as socket, asyncio.timeout(20):
        await socket.send(request("slotSubscribe"))
        await socket.recv()
        await asyncio.wait_for(await socket.ping(), 5)
        chain.faults.set(websocket="silent")
        await chain.advance_slots(1)
        pong = asyncio.ensure_future(await socket.ping())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(socket.recv(), 0.3)
        assert not pong.done()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3), connect(chain.ws_url):
                pass
        chain.faults.clear()
        await asyncio.wait_for(pong, 5)  # it hears again; what it missed stays missed
        await chain.advance_slots(1)
        assert '"slot":3' in str(await socket.recv())
        chain.faults.set(websocket="refuse")
        with pytest.raises(InvalidStatus):
            async with connect(chain.ws_url):
                pass


async def test_faults_over_json_rpc_only_where_allowed() -> None:
    async with LocalChain(OPEN) as chain, Rpc(chain.rpc_url) as rpc:
        now = await rpc("psyche_setFaults", {"http_status": 503, "latency_ms": 1, "drop_share": 1})
        assert now == asdict(chain.faults.now) == asdict(Faults(http_status=503, latency_ms=1, drop_share=1))
        with pytest.raises(httpx2.TransportError):
            await rpc("getSlot")
        with pytest.raises(RpcFailure, match="unknown fault 'lateness'"):
            await rpc("psyche_setFaults", {"lateness": 3})
        with pytest.raises(RpcFailure, match="drop_share is a share from 0 to 1, got 7"):
            await rpc("psyche_setFaults", {"drop_share": 7})
        with pytest.raises(RpcFailure, match="keeps no state"):
            await rpc("psyche_saveState")
        await rpc("psyche_setFaults")  # none
        assert await rpc("getSlot") == 1
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc:
        for method in ("psyche_setFaults", "psyche_saveState"):
            with pytest.raises(RpcFailure, match="Method not found"):
                await rpc(method, {"http_status": 503})
        assert chain.faults.now == Faults()


def test_faults_add_up_until_they_are_cleared() -> None:
    switch, heard = FaultSwitch(), list[Faults]()
    switch.watch(heard.append)
    switch.set(latency_ms=3)
    assert switch.set(drop_share=0.5) == switch.now == Faults(latency_ms=3, drop_share=0.5)
    switch.clear()
    assert heard == [Faults(latency_ms=3), Faults(latency_ms=3, drop_share=0.5), Faults()]


@pytest.mark.parametrize(
    ("fault", "value"),
    [
        ("latency_ms", -1),
        ("latency_ms", 1.5),
        ("drop_share", 1.01),
        ("drop_share", float("nan")),
        ("swallow_share", True),
        ("lose_answer_share", "1"),
        ("http_status", 200),
        ("expire_blockhashes_after", 151),
        ("websocket", "dead"),
    ],
)
def test_a_bad_fault_is_refused_and_changes_nothing(fault: str, value: object) -> None:
    switch = FaultSwitch()
    switch.set(latency_ms=5)
    with pytest.raises(ConfigError, match=fault):
        switch.set(**{fault: value})
    assert switch.now == Faults(latency_ms=5)
