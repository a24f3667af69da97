"""Real JSON-RPC and websocket sockets in front of a `ModelChain`, and what a provider may do wrong."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
from model_chain import HASH_SLOTS, Kept, Landed, ModelChain
from solders.pubkey import Pubkey
from solders.signature import Signature
from websockets.asyncio.server import ServerConnection, serve

from psyche_backend_solana.rpc.endpoints import Endpoint


class RpcProblem(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.answer = {"code": code, "message": message} | ({} if data is None else {"data": data})


@dataclass
class RpcProvider:
    """One RPC endpoint of the chain, on free ports. calls: method -> how often."""

    chain: ModelChain
    endpoint: Endpoint = field(init=False)
    calls: dict[str, int] = field(default_factory=dict)
    status: int = 200
    problem: RpcProblem | None = None
    behind: int = 0
    genesis: str = str(Pubkey(b"g" * 32))
    mute: bool = False
    """Its websockets stay open and say nothing."""
    _scope: anyio.CancelScope | None = None

    @property
    def is_open(self) -> bool:
        return self._scope is not None

    def shut(self) -> None:
        """As if the provider died: everything open is cut, nothing new gets in."""
        assert self._scope is not None
        self._scope.cancel()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async def answer_http(stream: anyio.abc.SocketStream) -> None:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                async with stream:
                    await self._http(stream)

        with anyio.CancelScope() as self._scope:
            old = getattr(self, "endpoint", None)
            ports = [int(url.rpartition(":")[2]) for url in (old.http, old.websocket)] if old else [0, 0]
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=ports[0], reuse_port=True)
            async with listener, serve(self._websocket, "127.0.0.1", ports[1], reuse_port=True, close_timeout=0.1) as sockets:
                http = listener.extra(anyio.abc.SocketAttribute.local_port)
                websocket = next(iter(sockets.sockets)).getsockname()[1]
                self.endpoint = Endpoint(f"http://127.0.0.1:{http}", f"ws://127.0.0.1:{websocket}")
                task_status.started()
                await listener.serve(answer_http)
        self._scope = None

    async def _http(self, stream: anyio.abc.SocketStream) -> None:
        buffer = b""
        while True:
            while b"\r\n\r\n" not in buffer:
                buffer += await stream.receive()
            head, _, buffer = buffer.partition(b"\r\n\r\n")
            lengths = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if not lengths:
                await stream.send(b"HTTP/1.1 400 X\r\ncontent-length: 0\r\n\r\n")
                return
            length = lengths[0]
            while len(buffer) < length:
                buffer += await stream.receive()
            request, buffer = json.loads(buffer[:length]), buffer[length:]
            body = json.dumps(self.answer(request)).encode() if self.status == 200 else b"no"
            await stream.send(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (self.status, len(body), body))

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        method, parameters = request["method"], request.get("params") or []
        self.calls[method] = self.calls.get(method, 0) + 1
        try:
            if self.problem is not None:
                raise self.problem
            return {"jsonrpc": "2.0", "id": request["id"], "result": getattr(self, method)(*parameters)}
        except RpcProblem as problem:
            return {"jsonrpc": "2.0", "id": request["id"], "error": problem.answer}
        except AttributeError:
            return {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "Method not found"}}

    async def _websocket(self, socket: ServerConnection) -> None:
        request = json.loads(await socket.recv())
        at, options = Pubkey.from_string(request["params"][0]), request["params"][1]
        await socket.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": 7}))
        seen = self.chain.read(at)
        while True:
            await self.chain.changed.wait()
            now = self.chain.read(at)
            if now == seen or self.mute:
                continue
            seen = now
            notice = {"subscription": 7, "result": self._context(self._json(now, options.get("dataSlice")))}
            await socket.send(json.dumps({"jsonrpc": "2.0", "method": "accountNotification", "params": notice}))

    # ------------------------------------------------------------ methods, named as in JSON-RPC

    def _context(self, value: Any) -> dict[str, Any]:
        return {"context": {"slot": self.chain.slot}, "value": value}

    def _json(self, kept: Kept | None, cut: dict[str, int] | None) -> dict[str, Any] | None:
        if kept is None:
            return None
        data = kept.data if cut is None else kept.data[cut["offset"] : cut["offset"] + cut["length"]]
        return {"lamports": kept.lamports, "owner": str(kept.owner), "data": [base64.b64encode(data).decode(), "base64"]}

    def getAccountInfo(self, at: str, options: dict[str, Any]) -> Any:
        return self._context(self._json(self.chain.read(Pubkey.from_string(at)), options.get("dataSlice")))

    def getMultipleAccounts(self, many: list[str], options: dict[str, Any]) -> Any:
        cut = options.get("dataSlice")
        return self._context([self._json(self.chain.read(Pubkey.from_string(at)), cut) for at in many])

    def getProgramAccounts(self, owner: str, options: dict[str, Any]) -> Any:
        begins = base64.b64decode(options["filters"][0]["memcmp"]["bytes"])
        size = next((entry["dataSize"] for entry in options["filters"] if "dataSize" in entry), None)
        return self._context(
            [
                {"pubkey": str(at), "account": self._json(kept, None)}
                for at, kept in self.chain.accounts.items()
                if str(kept.owner) == owner and kept.data.startswith(begins) and size in (None, len(kept.data))
            ]
        )

    def getBalance(self, at: str, _: Any) -> Any:
        kept = self.chain.read(Pubkey.from_string(at))
        return self._context(0 if kept is None else kept.lamports)

    def getMinimumBalanceForRentExemption(self, size: int) -> int:
        return (128 + size) * 6960

    def getLatestBlockhash(self, _: Any) -> Any:
        return self._context({"blockhash": self.chain.blockhash(), "lastValidBlockHeight": self.chain.slot + HASH_SLOTS})

    def getBlockHeight(self, _: Any) -> int:
        return self.chain.slot

    def getGenesisHash(self) -> str:
        return self.genesis

    def getSlot(self, *_: Any) -> int:
        return self.chain.slot

    def sendTransaction(self, raw: str, _: Any) -> str:
        return self.chain.send(base64.b64decode(raw))

    def simulateTransaction(self, raw: str, _: Any) -> Any:
        error = self.chain.simulate(base64.b64decode(raw))
        return self._context({"err": error, "unitsConsumed": self.chain.units, "logs": []})

    def getSignatureStatuses(self, many: list[str], _: Any) -> Any:
        by_name = {record.signature: record for record in self.chain.landed}
        return self._context(
            [
                {"slot": found.slot, "err": found.error, "confirmationStatus": "confirmed"}
                if (found := by_name.get(name)) is not None
                else None
                for name in many
            ]
        )

    def getSignaturesForAddress(self, at: str, options: dict[str, Any]) -> Any:
        address = Pubkey.from_string(at)
        records: Iterator[Landed] = iter(reversed([record for record in self.chain.landed if address in record.keys]))
        answer: list[dict[str, Any]] = []
        for record in records:
            if record.signature == options.get("until"):
                break
            answer.append({"signature": record.signature, "slot": record.slot, "err": record.error})
        return answer

    def getTransaction(self, name: str, _: Any) -> Any:
        Signature.from_string(name)
        found = next((record for record in self.chain.landed if record.signature == name), None)
        return None if found is None else {"transaction": [base64.b64encode(found.raw).decode(), "base64"]}


@contextlib.asynccontextmanager
async def open_chain(*, unix: int, providers: int = 1) -> AsyncIterator[ModelChain]:
    """A chain with open providers."""
    chain = ModelChain(unix)
    async with anyio.create_task_group() as group:
        for _ in range(providers):
            provider = RpcProvider(chain)
            await group.start(provider.run)
            chain.providers.append(provider)
        try:
            yield chain
        finally:
            group.cancel_scope.cancel()
