"""What one client may ask for, and contexts that are still to come."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import httpx2
import pytest
from localnet_parts import MANUAL, Rpc, RpcFailure, funded, paying, request
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_backend_solana.localnet import LAMPORTS_PER_SOL, FaultSwitch, Limits, LocalChain
from psyche_backend_solana.localnet.ledger.ledger import Ledger
from psyche_backend_solana.localnet.methods import METHODS
from psyche_backend_solana.localnet.serving.node import Node


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the peer closes, or resets, without a word."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_a_context_that_is_still_to_come_is_refused() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc:
        address = str(Keypair().pubkey())
        for method, *params in (("getBalance", address), ("getAccountInfo", address), ("getSlot",), ("getLatestBlockhash",)):
            with pytest.raises(RpcFailure) as caught:
                await rpc(method, *params, {"minContextSlot": 2, "commitment": "confirmed"})
            assert (caught.value.code, caught.value.data) == (-32016, {"contextSlot": 1})
        await chain.advance_slots(1)
        assert await rpc("getSlot", {"minContextSlot": 2}) == 2
        with pytest.raises(RpcFailure, match="commitment is one of processed, confirmed, finalized, got 'certain'"):
            await rpc("getSlot", {"commitment": "certain"})


async def test_answers_are_bounded() -> None:
    limits = Limits(accounts=3, program_accounts=4, answer_bytes=1000, airdrop=LAMPORTS_PER_SOL, request_bytes=3000)
    async with LocalChain(replace(MANUAL, limits=limits)) as chain, Rpc(chain.rpc_url) as rpc:
        program = Keypair().pubkey()
        addresses = [str(Keypair().pubkey()) for _ in range(4)]
        for address in addresses:
            await chain.set_account(address, Account(10**9, bytes(200), program))
        options = {"encoding": "base64"}
        assert len(await rpc("getProgramAccounts", str(program), options)) == 4
        assert len((await rpc("getMultipleAccounts", addresses[:3], options))["value"]) == 3
        with pytest.raises(RpcFailure, match="too many inputs provided; max 3"):
            await rpc("getMultipleAccounts", addresses, options)
        await chain.set_account(addresses[0], Account(10**9, bytes(500), program))
        with pytest.raises(RpcFailure, match="hold 1100 bytes, this chain gives at most 1000"):
            await rpc("getProgramAccounts", str(program), options)
        assert len(await rpc("getProgramAccounts", str(program), {**options, "dataSlice": {"offset": 0, "length": 9}})) == 4
        await chain.set_account(str(Keypair().pubkey()), Account(10**9, b"", program))
        with pytest.raises(RpcFailure, match="5 accounts match, this chain gives at most 4; add filters"):
            await rpc("getProgramAccounts", str(program), {**options, "dataSlice": {"offset": 0, "length": 0}})
        with pytest.raises(RpcFailure, match="lamports is a whole number"):
            await rpc("requestAirdrop", addresses[0], LAMPORTS_PER_SOL + 1)
        with pytest.raises(httpx2.HTTPStatusError, match="413"):
            await rpc("getSlot", " " * 3000)
        assert await rpc("getSlot") == 1


async def test_history_is_bounded() -> None:
    async with LocalChain(replace(MANUAL, limits=Limits(history=5))) as chain, Rpc(chain.rpc_url) as rpc:
        payer, sent = await funded(chain), []
        for _ in range(8):
            await chain.advance_slots(1)
            sent.append(await rpc.send(paying(payer, Keypair().pubkey(), 10**6, await rpc.blockhash())))
        known = (await rpc("getSignatureStatuses", sent))["value"]
        assert [status is not None for status in known] == [False] * 3 + [True] * 5
        assert await rpc("getFirstAvailableBlock") == 5
        with pytest.raises(RpcFailure) as caught:
            await rpc("getBlockTime", 4)
        assert caught.value.code == -32001
        with pytest.raises(RpcFailure) as caught:
            await rpc("getBlockTime", 99)
        assert caught.value.code == -32004
        found = await rpc("getSignaturesForAddress", str(payer.pubkey()), {"limit": 2, "before": sent[-1], "until": sent[3]})
        assert [one["signature"] for one in found] == [sent[6], sent[5]]


async def connections(chain: LocalChain, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = chain.rpc_url.removeprefix("http://").rpartition(":")
    return [await asyncio.open_connection(host, int(port)) for _ in range(count)]


async def test_connections_are_bounded() -> None:
    async with LocalChain(replace(MANUAL, limits=Limits(connections=2))) as chain, asyncio.timeout(10):
        opened = await connections(chain, 3)
        assert await ended(opened[2][0])
        for reader, writer in opened[:2]:
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        for _, writer in opened:
            writer.close()


async def test_connections_that_say_nothing_are_closed() -> None:
    async with LocalChain(replace(MANUAL, limits=Limits(idle_seconds=0.2))) as chain, asyncio.timeout(10):
        for reader, writer in await connections(chain, 2):
            assert await ended(reader)
            writer.close()


def test_a_defect_costs_one_answer_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """solders panics with what is no Exception."""

    class Panic(BaseException):
        pass

    def broken(_: object) -> None:
        raise Panic

    node = Node(Ledger(unix=1), Limits())
    node._methods = {**METHODS, "getHealth": broken}
    answer = json.loads(node.answer(f"[{request('getHealth')},{request('getSlot', number=2)}]".encode(), FaultSwitch()))
    assert answer[0] == {"jsonrpc": "2.0", "error": {"code": -32603, "message": "Internal error"}, "id": 1}
    assert answer[1]["result"] == 1
    assert "a request could not be answered" in caplog.text


async def test_an_account_that_does_not_exist_holds_nothing() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc:
        nobody = Keypair().pubkey()
        assert await rpc.balance(nobody) == 0
        assert (await rpc("getAccountInfo", str(nobody)))["value"] is None
        assert await chain.account(str(nobody)) is None
        assert await rpc("getProgramAccounts", str(nobody)) == []
        assert (await rpc("getAccountInfo", str(Pubkey.default()), {"encoding": "jsonParsed"}))["value"]["executable"]
