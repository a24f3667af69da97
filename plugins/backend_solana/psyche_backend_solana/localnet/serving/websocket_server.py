"""Websockets on a socket: passes messages to the node, and its answers and notifications back.

It uses websockets' own server, without keepalive pings (a silent connection must be able to stay silent) and without
compression. A client that does not read is disconnected when too many messages wait for it. For a message over the limit the
library closes the connection with code 1009.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from http import HTTPStatus

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from psyche_backend_solana.localnet.rpc.faults import Faults, FaultSwitch
from psyche_backend_solana.localnet.serving.engine import Engine
from psyche_backend_solana.localnet.settings import Limits

_QUIET = logging.Logger("psyche.backend.solana.localnet.websockets", logging.CRITICAL)
"""Not a registered logger, because failed handshakes of unknown clients are not our errors."""


class Outbox:
    """Waiting messages for one connection, each with the time of its arrival."""

    def __init__(self, most: int, overflow: Callable[[], None]) -> None:
        self._waiting: deque[tuple[float, str]] = deque()
        self._more = asyncio.Event()
        self._most = most
        self._overflow = overflow

    def put(self, text: str) -> None:
        """Add a message; if there are too many, call `overflow` and drop it."""
        if len(self._waiting) >= self._most:
            self._overflow()
            return

        self._waiting.append((time.monotonic(), text))
        self._more.set()

    async def take(self) -> tuple[float, str]:
        """The oldest message."""
        while not self._waiting:
            self._more.clear()
            await self._more.wait()
        return self._waiting.popleft()


class Outboxes:
    """All websocket connections of a chain, by number."""

    def __init__(self) -> None:
        self._all: dict[int, Outbox] = {}

    def deliver(self, outgoing: list[tuple[int, str]]) -> None:
        """Put messages into the outboxes; those for ended connections are dropped."""
        for number, text in outgoing:
            if number in self._all:
                self._all[number].put(text)

    def open(self, number: int, outbox: Outbox) -> None:
        """Add a connection."""
        self._all[number] = outbox

    def close(self, number: int) -> None:
        """Remove a connection that has ended."""
        self._all.pop(number, None)


class WebsocketServer:
    """Serves a bound socket until it is closed."""

    def __init__(
        self, engine: Engine, faults: FaultSwitch, *, outboxes: Outboxes, numbers: Iterator[int], limits: Limits
    ) -> None:
        self._engine = engine
        self._faults = faults
        self._outboxes = outboxes
        self._numbers = numbers
        self._limits = limits
        self._server: Server | None = None
        self._connections: set[ServerConnection] = set()
        self._turned = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        faults.watch(self._faults_changed)

    @property
    def connected(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    async def start(self, listening: socket.socket) -> None:
        """Accept connections."""
        self._server = await serve(
            self._attend,
            sock=listening,
            process_request=self._admit,
            max_size=self._limits.request_bytes,
            compression=None,
            ping_interval=None,
            close_timeout=1.0,
            logger=_QUIET,
        )

    async def aclose(self) -> None:
        """Stop listening and end every connection; idempotent."""
        if self._server is None:
            return

        self.cut()
        self._server.close()
        self._turned.set()
        await self._server.wait_closed()
        self._server = None

    def cut(self) -> None:
        """End every connection without a close frame."""
        for connection in self._connections:
            connection.transport.abort()

    async def _admit(self, connection: ServerConnection, _: Request) -> Response | None:
        while self._faults.now.websocket == "silent":  # the library's timeout ends this loop
            self._turned.clear()
            await self._turned.wait()
        if self._faults.now.websocket == "refuse" or len(self._connections) >= self._limits.connections:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "no websockets here now\n")

        return None

    def _faults_changed(self, now: Faults) -> None:
        """Handle changed faults. Called in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop and all connections are closed
            self._loop.call_soon_threadsafe(self._turn, now)

    def _turn(self, now: Faults) -> None:
        """Apply changed faults: make connections silent, or end the silence."""
        self._turned.set()
        for connection in self._connections:
            if now.websocket == "silent":
                connection.transport.pause_reading()
            else:
                connection.transport.resume_reading()

    async def _attend(self, connection: ServerConnection) -> None:
        number = next(self._numbers)
        outbox = Outbox(self._limits.unsent, connection.transport.abort)
        self._outboxes.open(number, outbox)
        self._connections.add(connection)
        writer = asyncio.create_task(self._write(connection, outbox))
        try:
            with contextlib.suppress(ConnectionClosed):
                async for message in connection:
                    await self._engine.call(self._engine.node.receive, number, message, self._faults)
        finally:
            self._connections.discard(connection)
            self._outboxes.close(number)
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writer
            with contextlib.suppress(RuntimeError):  # the chain and its subscriptions stop
                await self._engine.call(self._engine.node.leave, number)

    async def _write(self, connection: ServerConnection, outbox: Outbox) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                came, text = await outbox.take()
                late = came + self._faults.now.latency_ms / 1000 - time.monotonic()
                if late > 0:
                    await asyncio.sleep(late)
                if self._faults.now.websocket != "silent":
                    await connection.send(text)
