"""An RPC provider: a pair of URLs with its own faults. Several providers may serve one chain."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from http import HTTPStatus

from psyche_backend_solana.localnet.rpc.faults import FaultSwitch
from psyche_backend_solana.localnet.serving.engine import Engine
from psyche_backend_solana.localnet.serving.http_server import HttpAnswer, HttpServer, plain
from psyche_backend_solana.localnet.serving.websocket_server import Outboxes, WebsocketServer
from psyche_backend_solana.localnet.settings import Limits
from psyche_core.errors import UserError

_BACKLOG = 128
_TRIES = 50
_ADMIN = b'"psyche_'


class RpcProvider:
    """HTTP and websockets at two ports. Closed and opened again, it keeps its ports and its faults."""

    def __init__(
        self, engine: Engine, *, host: str, outboxes: Outboxes, numbers: Iterator[int], limits: Limits, admin: bool
    ) -> None:
        self.faults: FaultSwitch = FaultSwitch()
        self._engine = engine
        self._host = host
        self._admin = admin
        self._http = HttpServer(self._answer, limits=limits)
        self._websockets = WebsocketServer(engine, self.faults, outboxes=outboxes, numbers=numbers, limits=limits)
        self._ports = (0, 0)

    @property
    def rpc_url(self) -> str:
        """`http://HOST:PORT`."""
        return f"http://{self.rpc_place}"

    @property
    def ws_url(self) -> str:
        """`ws://HOST:PORT`."""
        return f"ws://{self.ws_place}"

    @property
    def rpc_place(self) -> str:
        """`HOST:PORT` of RPC."""
        return f"{self._shown_host}:{self._ports[0]}"

    @property
    def ws_place(self) -> str:
        """`HOST:PORT` of the websockets."""
        return f"{self._shown_host}:{self._ports[1]}"

    @property
    def _shown_host(self) -> str:
        return f"[{self._host}]" if ":" in self._host else self._host

    @property
    def websockets(self) -> int:
        """Open websocket connections."""
        return self._websockets.connected

    async def open(self, rpc_port: int = 0, ws_port: int | None = None) -> None:
        """Listen. 0 picks a free port; ws_port None means rpc_port + 1. Raises UserError if a port cannot be used."""
        first, second = _bind_pair(self._host, rpc_port, ws_port)
        self._ports = (first.getsockname()[1], second.getsockname()[1])
        await self._http.start(first)
        await self._websockets.start(second)

    async def reopen(self) -> None:
        """Listen at the same ports again."""
        await self.open(*self._ports)

    async def close(self) -> None:
        """Stop listening, as if the provider were switched off; idempotent."""
        await self._websockets.aclose()
        await self._http.aclose()

    def cut_websockets(self) -> None:
        """End every websocket connection without a close frame; new ones are accepted."""
        self._websockets.cut()

    async def _answer(self, body: bytes) -> HttpAnswer | None:
        faults = self.faults.now
        if self._admin and _ADMIN in body:
            return await self._carry_out(body)

        if faults.latency_ms:
            await asyncio.sleep(faults.latency_ms / 1000)
        if self.faults.draw(faults.drop_share):
            return None

        if faults.http_status is not None:
            known = faults.http_status in list(HTTPStatus)
            return plain(HTTPStatus(faults.http_status)) if known else HttpAnswer(status=faults.http_status, body=b"")

        answer = await self._carry_out(body)
        return None if self.faults.draw(faults.lose_answer_share) else answer

    async def _carry_out(self, body: bytes) -> HttpAnswer:
        return HttpAnswer(status=HTTPStatus.OK, body=await self._engine.call(self._engine.node.answer, body, self.faults))


def _bind_pair(host: str, rpc_port: int, ws_port: int | None) -> tuple[socket.socket, socket.socket]:
    """Two listening sockets. If both ports can be chosen, they are consecutive."""
    for left in range(_TRIES, 0, -1):
        first = _bind(host, rpc_port)
        wanted = first.getsockname()[1] + 1 if ws_port is None else ws_port
        try:
            return first, _bind(host, wanted)
        except UserError:
            first.close()
            if rpc_port != 0 or ws_port is not None or left == 1:
                raise
    message = "unreachable"
    raise AssertionError(message)


def _bind(host: str, port: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(OSError):
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(_BACKLOG)
        opened.setblocking(False)
    except (OSError, OverflowError) as error:
        opened.close()
        message = f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}; choose another port"
        raise UserError(message) from error

    return opened
