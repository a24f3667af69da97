"""Websockets of the local chain by hand: order, failed transactions, closed accounts, limits, slow clients."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from localnet_parts import MANUAL, START, Rpc, funded, paying, request
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from psyche_backend_solana.localnet import ChainSettings, Limits, LocalChain


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def ask(socket: ClientConnection, method: str, *params: Any) -> Any:
    """The answer to a request while nothing else is going on."""
    await socket.send(request(method, *params))
    reply = json.loads(await socket.recv())
    assert reply["id"] == 1
    return reply.get("result", reply.get("error"))


async def hear(socket: ClientConnection) -> Any:
    return json.loads(await socket.recv())["params"]


async def test_notifications_come_in_the_order_of_what_happened() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc, connect(chain.ws_url) as socket, asyncio.timeout(20):
        payer, to = await funded(chain), Keypair().pubkey()
        account = await ask(socket, "accountSubscribe", str(to), {"encoding": "base64"})
        slots = await ask(socket, "slotSubscribe")
        blockhash = await rpc.blockhash()
        expected, total = [], 0
        for step in range(30):
            if step % 3 == 2:
                slot = (await chain.advance_slots(1)).slot
                expected.append((slots, slot))
            else:
                await rpc.send(paying(payer, to, 1_000_000 + step, blockhash))
                total += 1_000_000 + step
                expected.append((account, total))
        heard = []
        for _ in expected:
            note = await hear(socket)
            value = note["result"]
            heard.append((note["subscription"], value["slot"] if "slot" in value else value["value"]["lamports"]))
        assert heard == expected


async def test_a_confirmation_comes_before_the_first_notification() -> None:
    """The signature is there already, so confirmation and notification leave together."""
    async with LocalChain(MANUAL) as chain, connect(chain.ws_url) as socket, asyncio.timeout(20):
        signature = await chain.airdrop(str(Keypair().pubkey()), 10**9)
        await socket.send(request("signatureSubscribe", signature))
        first, second = json.loads(await socket.recv()), json.loads(await socket.recv())
        assert second["params"] == {
            "result": {"context": {"apiVersion": "3.0.0", "slot": 1}, "value": {"err": None}},
            "subscription": first["result"],
        }
        gone = await ask(socket, "signatureUnsubscribe", first["result"])
        assert gone == {"code": -32602, "message": "Invalid subscription id."}


async def test_a_failed_transaction_is_told_with_its_error() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc, connect(chain.ws_url) as socket, asyncio.timeout(20):
        payer, to = await funded(chain), Keypair().pubkey()
        failing = paying(payer, to, 10**18, await rpc.blockhash())
        await ask(socket, "signatureSubscribe", str(failing.signatures[0]), {"enableReceivedNotification": True})
        await ask(socket, "accountSubscribe", str(to))
        await ask(socket, "accountSubscribe", str(payer.pubkey()), {"encoding": "base64"})
        await rpc.send(failing, skipPreflight=True)
        assert (await hear(socket))["result"]["value"] == "receivedSignature"
        assert (await hear(socket))["result"]["value"] == {"err": {"InstructionError": [0, {"Custom": 1}]}}
        assert (await hear(socket))["result"]["value"]["lamports"] == 100 * 10**9 - 5000  # the payer's; `to` was not written


async def test_accounts_that_change_hands_or_vanish() -> None:
    async with LocalChain(MANUAL) as chain, connect(chain.ws_url) as socket, asyncio.timeout(20):
        address, owner = Keypair().pubkey(), Keypair().pubkey()
        of_account = await ask(socket, "accountSubscribe", str(address), {"encoding": "base64"})
        of_program = await ask(
            socket, "programSubscribe", str(owner), {"encoding": "base64", "filters": [{"memcmp": {"offset": 1, "bytes": "2"}}]}
        )
        await chain.set_account(str(address), Account(10**9, b"\0\1\0", owner))
        await chain.set_account(str(address), Account(10**9, b"\0\2\0", owner))  # no longer passes the filter
        await chain.set_account(str(address), Account(0, b"", Pubkey.default()))
        heard = [await hear(socket) for _ in range(4)]
        assert [one["subscription"] for one in heard] == [of_account, of_program, of_account, of_account]
        assert heard[0]["result"]["value"]["data"] == ["AAEA", "base64"]
        assert heard[1]["result"]["value"]["pubkey"] == str(address)
        last = heard[3]["result"]["value"]
        assert (last["lamports"], last["data"], last["owner"]) == (0, ["", "base64"], str(Pubkey.default()))


async def test_limits_of_a_connection() -> None:
    settings = replace(MANUAL, limits=Limits(subscriptions=3, request_bytes=2000))
    async with LocalChain(settings) as chain, asyncio.timeout(20):
        async with connect(chain.ws_url) as socket, connect(chain.ws_url) as other:
            numbers = [await ask(socket, "slotSubscribe") for _ in range(3)]
            assert "may hold 3 subscriptions" in (await ask(socket, "slotSubscribe"))["message"]
            assert isinstance(await ask(other, "slotSubscribe"), int)
            assert (await ask(other, "slotUnsubscribe", numbers[0]))["code"] == -32602  # somebody else's
            assert await ask(socket, "slotUnsubscribe", numbers[0]) is True
            assert isinstance(await ask(socket, "rootSubscribe"), int)
            assert (await ask(socket, "getSlot"))["code"] == -32601  # HTTP only, as at a real validator
            await socket.send("[" + "1," * 2000 + "1]")
            with pytest.raises(ConnectionClosed) as caught:
                await socket.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1009
            await chain.advance_slots(1)
            assert (await hear(other))["result"]["slot"] == 2


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    settings = replace(MANUAL, limits=Limits(unsent=50))
    async with (
        LocalChain(settings) as chain,
        connect(chain.ws_url, ping_interval=None) as slow,  # no ping of its own may end it
        connect(chain.ws_url) as other,
        asyncio.timeout(15),
    ):
        address = str(Keypair().pubkey())
        await ask(slow, "accountSubscribe", address, {"encoding": "base64"})
        await ask(other, "rootSubscribe")
        slow.transport.pause_reading()
        while chain.providers[0].websockets == 2:
            await chain.set_account(address, Account(10**9, bytes(100_000), Pubkey.default()))
        await chain.advance_slots(1)
        assert (await hear(other))["result"] == 2
        slow.transport.abort()


async def test_who_leaves_is_forgotten() -> None:
    async with LocalChain(MANUAL) as chain, asyncio.timeout(20):
        node = chain._engine.node
        async with connect(chain.ws_url) as staying:
            await ask(staying, "slotSubscribe")
            async with connect(chain.ws_url) as leaving:
                for _ in range(5):
                    await ask(leaving, "accountSubscribe", str(Pubkey.default()))
                assert node.subscriptions == 6
            while node.subscriptions != 1:
                await asyncio.sleep(0.01)


async def test_what_is_no_websocket_disturbs_nobody() -> None:
    async with LocalChain(ChainSettings(manual_clock=True, start_time=START, programs={})) as chain, asyncio.timeout(20):
        host, _, port = chain.ws_url.removeprefix("ws://").rpartition(":")
        for nonsense in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\xff\xff",
            bytes(5000),
            b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(nonsense)
            writer.write_eof()
            await reader.read()
            writer.close()
            await writer.wait_closed()
        async with connect(chain.ws_url) as socket:
            for message in (b"\xff\xfe", "{", "[]", "7", '{"jsonrpc":"2.0"}', '"' + "\\ud800" + '"'):
                await socket.send(message)
                assert json.loads(await socket.recv())["error"]["code"] in (-32700, -32600)
            await socket.send('{"jsonrpc":"2.0","method":"ping"}')  # web3.js does; nobody waits for an answer
            assert isinstance(await ask(socket, "slotSubscribe"), int)
