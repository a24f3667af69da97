"""Whatever clients send, the node answers with an error object, goes on, and logs nothing it did not expect."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from localnet_parts import MANUAL, START, TOKEN, Rpc, paying, request
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey

from psyche_backend_solana.localnet import FaultSwitch, Limits, LocalChain
from psyche_backend_solana.localnet.ledger.ledger import Ledger
from psyche_backend_solana.localnet.methods import ADMIN_METHODS, METHODS
from psyche_backend_solana.localnet.serving.node import Node

pytestmark = pytest.mark.repeated
TIMES = int(os.environ.get("SOAK_TIMES", "1"))
PAYER = Keypair.from_seed(bytes(range(32)))
KINDS = ("account", "program", "signature", "logs", "slot", "root")
PUBSUB = [f"{kind}{action}" for kind in KINDS for action in ("Subscribe", "Unsubscribe")]

OPTION_NAMES = (
    *("commitment", "encoding", "dataSlice", "minContextSlot", "filters", "withContext", "limit", "before", "mint"),
    *("programId", "maxSupportedTransactionVersion", "transactionDetails", "accounts", "sigVerify"),
    *("replaceRecentBlockhash", "mentions", "skipPreflight", "innerInstructions", "websocket", "latency_ms"),
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def make_node() -> Node:
    ledger = Ledger(unix=START)
    ledger.airdrop(PAYER.pubkey(), 10**12)
    return Node(ledger, Limits(batch=5), admin=True)


NODE = make_node()
BLOCKHASH = Hash.from_string(NODE.ledger.blockhashes.latest)
GOOD = paying(PAYER, Pubkey.default(), 1, BLOCKHASH)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
addresses = st.sampled_from([str(PAYER.pubkey()), str(TOKEN), str(Pubkey.default()), "1" * 31, "1" * 44, "z" * 44, "0OIl"])
signatures = st.sampled_from([str(GOOD.signatures[0]), "1" * 64, "2" * 88, "z" * 88])
options = st.dictionaries(
    st.sampled_from(OPTION_NAMES),
    st.sampled_from(["base64", "base58", "jsonParsed", "base64+zstd", "confirmed", "full", True, False, 0, 1, 2**64, -1])
    | addresses
    | st.lists(json_values | addresses, max_size=5)
    | st.fixed_dictionaries({"offset": st.integers(-1, 2**64), "length": st.integers(-1, 2**64)})
    | st.fixed_dictionaries(
        {"memcmp": st.fixed_dictionaries({"offset": st.integers(-1, 2**64), "bytes": json_values | addresses})}
    )
    | st.fixed_dictionaries({"addresses": st.lists(addresses, max_size=3)})
    | json_values,
    max_size=4,
)
mutated = st.builds(
    lambda at, byte, tail: base64.b64encode(bytes(GOOD)[:at] + bytes([byte]) + bytes(GOOD)[at + 1 :] + tail).decode(),
    st.integers(0, len(bytes(GOOD)) - 1),
    st.integers(0, 255),
    st.just(b"") | st.binary(max_size=3),
)
noise = st.builds(lambda data: base64.b64encode(data).decode(), st.binary(max_size=1300))
parameters = st.lists(
    json_values | addresses | signatures | options | mutated | noise | st.lists(addresses | signatures), max_size=4
)
likely = st.sampled_from([[], ["base64"]]).flatmap(
    lambda _: st.tuples(mutated | noise, options.map(lambda one: {**one, "encoding": "base64"})).map(list)
)


def check(reply: Any) -> None:
    assert reply["jsonrpc"] == "2.0"
    assert ("result" in reply) != ("error" in reply)
    if "error" in reply:
        assert isinstance(reply["error"]["code"], int)
        assert reply["error"]["code"] != -32603 or reply["error"]["message"] != "Internal error"


@pytest.fixture(autouse=True)
def silent_log(caplog: pytest.LogCaptureFixture) -> Any:
    """The node logs what it did not expect: nothing here is allowed to be that."""
    caplog.set_level(logging.WARNING)
    yield
    assert [record.message for record in caplog.records] == []


@settings(max_examples=300 * TIMES, deadline=None)
@given(method=st.sampled_from([*METHODS, *ADMIN_METHODS]), params=parameters)
def test_any_parameters_of_any_method(method: str, params: list[Any]) -> None:
    check(json.loads(NODE.answer(request(method, *params).encode(), FaultSwitch())))


@settings(max_examples=200 * TIMES, deadline=None)
@given(method=st.sampled_from(["sendTransaction", "simulateTransaction", "getFeeForMessage"]), params=likely)
def test_any_transaction(method: str, params: list[Any]) -> None:
    check(json.loads(NODE.answer(request(method, *params).encode(), FaultSwitch())))


@settings(max_examples=75 * TIMES, deadline=None)
@given(data=st.data())
def test_any_version_0_message(data: st.DataObject) -> None:
    """Mutated after the signature, and simulated without verifying it, so that the machine sees them."""
    message = bytes([0x80]) + bytes(MessageV0.try_compile(PAYER.pubkey(), [], [], BLOCKHASH))[1:]
    raw = bytearray(b"\1" + bytes(64) + message)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(65, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw += data.draw(st.binary(max_size=8))
    body = request("simulateTransaction", base64.b64encode(bytes(raw)).decode(), {"encoding": "base64"})
    check(json.loads(NODE.answer(body.encode(), FaultSwitch())))


@settings(max_examples=150 * TIMES, deadline=None)
@given(
    method=st.sampled_from(PUBSUB),
    params=parameters | st.tuples(addresses | signatures | st.just("all"), options).map(list),
)
def test_any_subscription(method: str, params: list[Any]) -> None:
    node = NODE
    node.receive(1, request(method, *params), FaultSwitch())
    node.receive(2, request("accountSubscribe", str(PAYER.pubkey()), {"encoding": "jsonParsed"}), FaultSwitch())
    node.ledger.airdrop(PAYER.pubkey(), 1)
    node.act(lambda _: None)
    outgoing = node.take_outgoing()
    assert outgoing[0][0] == 1
    check(json.loads(outgoing[0][1]))
    assert any(connection == 2 and "accountNotification" in text for connection, text in outgoing)
    for connection in (1, 2):
        node.leave(connection)


@settings(max_examples=100 * TIMES, deadline=None)
@given(body=st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()) | st.just(b"[" * 30_000))
def test_any_body(body: bytes) -> None:
    answer = NODE.answer(body, FaultSwitch())
    if answer:
        replies = json.loads(answer)
        for reply in replies if isinstance(replies, list) else [replies]:
            check(reply)


def test_an_id_that_is_none_is_answered_with_null() -> None:
    for identifier in ("1e999", "[]", "true", "1.5", "{}"):
        answer = NODE.answer(f'{{"jsonrpc":"2.0","id":{identifier},"method":"getHealth"}}'.encode(), FaultSwitch())
        assert answer == b'{"jsonrpc":"2.0","result":"ok","id":null}'


def test_batches_are_answered_in_order_and_bounded() -> None:
    def batch(count: int) -> Any:
        requests = [json.loads(request("getSlot", number=number)) for number in range(count)]
        return json.loads(NODE.answer(json.dumps(requests).encode(), FaultSwitch()))

    assert [reply["id"] for reply in batch(5)] == [0, 1, 2, 3, 4]
    assert batch(6)["error"]["message"] == "a batch has 1 to 5 requests, got 6"
    assert batch(0)["error"]["code"] == -32600
    assert NODE.answer(b'[{"jsonrpc":"2.0","method":"getSlot"}]', FaultSwitch()) == b""


async def test_what_is_no_http_disturbs_nobody() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc, asyncio.timeout(30):
        host, _, port = chain.rpc_url.removeprefix("http://").rpartition(":")

        async def say(data: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(data)
            writer.write_eof()
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return answer

        head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        assert (await say(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")).endswith(b"ok\n")
        cases: dict[bytes, Callable[[bytes], bool]] = {
            b"GET / HTTP/1.1\r\nhost: x\r\n\r\n": lambda answer: b" 405 " in answer,
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}": lambda answer: b" 415 " in answer,
            head + b"content-length: 99999999\r\n\r\n" + b" " * 60_000: lambda answer: b" 413 " in answer,
            head + b"content-length: x\r\n\r\n": lambda answer: b" 400 " in answer,
            b"\x16\x03\x01\xff\xff" * 100: lambda answer: b" 400 " in answer,
            b"x" * 100_000: lambda answer: b" 431 " in answer or b" 400 " in answer,
            head + b"content-length: 100\r\n\r\n{": lambda answer: b" 200 " not in answer,
            b"": lambda answer: answer == b"",
            head + b"transfer-encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n": lambda answer: b"a batch has" in answer,
            head + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n{}": lambda answer: answer.startswith(b"HTTP/1.1 100"),
        }
        for data, expected in cases.items():
            answer = await say(data)
            assert expected(answer), (data[:80], answer[:200])
            assert await rpc("getSlot") == 1
        twice = (head + b"content-length: 2\r\n\r\n{}") * 2  # pipelined
        assert (await say(twice)).count(b"HTTP/1.1 200") == 2
