"""The relay's server: sockets, clock and log. It decides nothing; see `router` and `connection`.

All connections share one receive buffer, because every read is handled before the next one; so an idle client has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from psyche_core.errors import UserError
from psyche_p2p_quic.relay.access import Access
from psyche_p2p_quic.relay.admission import Admission
from psyche_p2p_quic.relay.connection import Client, Phase
from psyche_p2p_quic.relay.kernel_buffers import bound, discard
from psyche_p2p_quic.relay.limits import RelayLimits
from psyche_p2p_quic.relay.metrics import CONTENT_TYPE, prometheus_text
from psyche_p2p_quic.relay.protocol import frames
from psyche_p2p_quic.relay.protocol.http import Page, Pages
from psyche_p2p_quic.relay.protocol.tls import ServerTls, TlsFailed
from psyche_p2p_quic.relay.protocol.websocket import CloseCode
from psyche_p2p_quic.relay.refusal_log import RefusalLog
from psyche_p2p_quic.relay.router import Router

_log = logging.getLogger("psyche.relay")
_READ_BYTES = 256 * 1024
_WRITE_BYTES = 64 * 1024
_TICK_SECONDS = 0.25
_SUMMARY_SECONDS = 60.0
_BACKLOG = 1024
_AWAY_MS, _TRY_FOR_MS = 1000, 60_000
"""Sent to clients of a relay that stops: when to reconnect, and how long to try."""


class RelayServer:
    """A relay that listens. An async context manager: entering it binds, leaving it closes all connections.

    hosts, port: to listen on; port 0 picks a free one, the same for all hosts. tls: a server's context, None for plain HTTP.
    pages: more HTTP paths. public_metrics: whether programs on other machines may read /metrics. gauges: returns more values for
    it. clock: monotonic seconds. Raises UserError if it cannot listen there.
    """

    def __init__(
        self,
        access: Access,
        *,
        hosts: Sequence[str],
        port: int,
        limits: RelayLimits | None = None,
        tls: ssl.SSLContext | None = None,
        pages: Pages | None = None,
        public_metrics: bool = False,
        gauges: Callable[[], Sequence[tuple[str, str, float]]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits: RelayLimits = limits or RelayLimits()
        self._clock = clock
        self._started = clock()
        self._gauges = gauges
        self._public_metrics = public_metrics
        own: Pages = {
            "/": lambda _: Page("a relay for iroh endpoints\n"),
            "/ping": lambda _: Page(headers=(("Access-Control-Allow-Origin", "*"),)),
            "/healthz": lambda _: self._health(),
            "/metrics": self._metrics_page,
        }
        self.router: Router = Router(access, limits=self.limits, pages={**own, **(pages or {})})
        self._hosts, self._wanted_port, self._tls = list(hosts), port, tls
        self._admission: Admission[_Socket] = Admission(
            most=self.limits.connections,
            most_waiting=self.limits.unproven,
            most_per_address=self.limits.connections_per_address,
            rate=self.limits.connection_rate_per_address,
            excuses=access.knows_owners,
        )
        self._refusals = RefusalLog()
        self._connections: set[_Socket] = set()
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._loop = asyncio.get_running_loop()
        self._servers: list[asyncio.Server] = []
        self._ticking: asyncio.Task[None] | None = None
        self._draining = False
        self._gone = asyncio.Event()

    async def __aenter__(self) -> Self:
        try:
            for host in self._hosts:
                port = self.port if self._servers else self._wanted_port
                server = await self._loop.create_server(lambda: _Socket(self), host, port, backlog=_BACKLOG)
                self._servers.append(server)
        except OSError as error:
            place = f"port {self._wanted_port} of {', '.join(self._hosts)}"
            self._stop_listening()
            message = f"the relay cannot listen on {place}: {error.strerror}; choose another port or host"
            raise UserError(message) from error

        self._ticking = asyncio.create_task(self._tick_forever(), name="relay clock")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking
        self._stop_listening()
        for connection in list(self._connections):
            connection.abort()

    @property
    def port(self) -> int:
        """The TCP port that it listens on."""
        return int(self._servers[0].sockets[0].getsockname()[1])

    def reconsider(self) -> None:
        """Apply a changed access policy: admit clients that waited, and close clients that may not stay."""
        before = [
            (connection, connection.client, connection.client.phase) for connection in self._connections if connection.client
        ]
        self.router.reconsider([client for _, client, _ in before], self._clock())
        for connection, client, phase in before:
            if phase is not client.phase:
                connection._note(client)
        self.flush()

    async def drain(self, *, seconds: float) -> None:
        """Stop listening, inform all clients that the relay stops, and wait until they have left, at most `seconds`."""
        self._draining = True
        self._stop_listening()
        now = self._clock()
        clients = [connection.client for connection in self._connections if connection.client is not None]
        for client in clients:
            if client.phase is Phase.CONNECTED:
                client.queue_control(frames.restarting(reconnect_in_ms=_AWAY_MS, try_for_ms=_TRY_FOR_MS))
        for client in clients:
            client.finish(CloseCode.GOING_AWAY, "the relay stops", now)
        self.flush()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), seconds)

    def _stop_listening(self) -> None:
        for server in self._servers:
            server.close()

    def _admit(self, socket: _Socket, host: str) -> bool:
        """Return whether a new connection may stay; an older one may be closed for it."""
        admitted, crowded = self._admission.enter(socket, host, self._clock())
        if crowded is not None:
            self.router.counters.crowded_out += 1
            crowded.abort()
        if not admitted:
            self.router.counters.connections_refused += 1
        return admitted

    def _log_refusal(self, client: Client) -> None:
        """Log which client was refused, and its address, if it is worth a line."""
        line = self._refusals.line(client.key, client.host, client.ending, self._clock())
        if line is not None:
            _log.info("%s", line)

    def flush(self) -> None:
        """Write what was queued since the last call."""
        dirty = self.router.dirty
        while dirty:
            client = dirty.pop()
            client.dirty = False
            connection = client.shell
            assert isinstance(connection, _Socket)
            connection.write()

    def metrics(self) -> str:
        """Return the text that Prometheus reads."""
        router = self.router
        return prometheus_text(
            router.counters,
            [
                ("clients", "clients connected now", router.client_count),
                ("ids", "different ids among them", router.id_count),
                ("connections_open", "TCP connections open now, of any state", len(self._connections)),
                ("queued_bytes", "bytes waiting for slow clients", router.queued_bytes),
                ("uptime_seconds", "since the relay started", round(self._clock() - self._started)),
                *self._gauges(),
            ],
        )

    def _metrics_page(self, caller: str) -> Page | None:
        if self._public_metrics or caller in {"127.0.0.1", "::1", *self._hosts}:
            return Page(self.metrics(), kind=CONTENT_TYPE)
        return None

    def _health(self) -> Page:
        body = {"status": "stopping" if self._draining else "ok", "clients": self.router.client_count}
        return Page(json.dumps(body) + "\n", kind="application/json")

    async def _tick_forever(self) -> None:
        summary_at = self._clock() + _SUMMARY_SECONDS
        last = self.router.counters.bytes_forwarded
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = self._clock()
            for connection in list(self._connections):
                connection.tick(now)
            self.flush()
            if now >= summary_at:
                last = self._summarise(last)
                summary_at = now + _SUMMARY_SECONDS

    def _summarise(self, before: int) -> int:
        """Log one line about the last minute, if anything happened."""
        counters = self.router.counters
        forwarded = counters.bytes_forwarded - before
        if forwarded or self.router.client_count:
            _log.info(
                "%d clients, %.1f MB forwarded in the last minute; since the start %d frames dropped, %d logins denied, "
                "%d connections refused",
                self.router.client_count,
                forwarded / 1e6,
                counters.frames_dropped,
                counters.logins_denied,
                counters.connections_refused,
            )
        return counters.bytes_forwarded


class _Socket(asyncio.BufferedProtocol):
    """A socket, and the client at its other end."""

    __slots__ = ("_admitted", "_resuming", "_server", "_tls", "_transport", "client")

    def __init__(self, server: RelayServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._admitted = False
        self._resuming: asyncio.TimerHandle | None = None
        self._tls: ServerTls | None = None
        self.client: Client | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        server = self._server
        self._transport = transport
        peer = transport.get_extra_info("peername")
        host = str(peer[0]) if peer else "?"
        if not server._admit(self, host):
            transport.abort()
            return

        server.router.counters.connections += 1
        server._connections.add(self)
        transport.set_write_buffer_limits(high=_WRITE_BYTES)
        limits = server.limits
        bound(
            transport.get_extra_info("socket"),
            send_bytes=limits.send_buffer_bytes,
            unanswered_seconds=limits.ping_seconds + limits.pong_seconds,
        )
        if server._tls is not None:
            self._tls = ServerTls(server._tls)
        self.client = Client(server.router, host, server._clock())
        self.client.shell = self

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's signature
        return self._server._view

    def buffer_updated(self, nbytes: int) -> None:
        client = self.client
        if client is None:
            return

        server = self._server
        was = client.phase
        now = server._clock()
        data = server._view[:nbytes]
        if self._tls is not None:
            data = memoryview(self._decrypted(self._tls, data))
            if not data:
                return
        client.receive(data, now)
        if was is not client.phase:
            self._note(client)
        if client.paused_until > now and self._resuming is None and self._transport is not None:
            self._transport.pause_reading()
            self._resuming = server._loop.call_at(server._loop.time() + client.paused_until - now, self._resume_reading)
        if server.router.dirty:
            server.flush()

    def _decrypted(self, tls: ServerTls, data: memoryview) -> bytes:
        """Return what the client sent, b"" if nothing; close a connection whose TLS fails or ends."""
        assert self._transport is not None
        ended = False
        plain = b""
        try:
            plain = tls.receive(data)
            ended = tls.ended
        except TlsFailed:
            self._server.router.counters.tls_failures += 1
            ended = True
        self._transport.write(tls.left_to_send())
        if ended:
            self._transport.close()
        return plain

    def _resume_reading(self) -> None:
        self._resuming = None
        if self._transport is not None:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self.client is not None:
            self.client.blocked_since = self._server._clock()

    def resume_writing(self) -> None:
        if self.client is not None:
            self.client.blocked_since = None
            self.write()

    def write(self) -> None:
        """Write what is queued until the socket accepts no more; close after the last bytes of a client that ends."""
        client, transport = self.client, self._transport
        if client is None or transport is None or transport.is_closing():
            return

        while client.out_bytes and client.blocked_since is None:
            data = client.take(_WRITE_BYTES)
            if self._tls is not None:
                self._tls.send(data)
                data = self._tls.left_to_send()
            transport.write(data)
        if client.phase is Phase.CLOSING and not client.out_bytes:
            if self._tls is not None:
                self._tls.close()
                transport.write(self._tls.left_to_send())
            transport.close()

    def tick(self, now: float) -> None:
        client = self.client
        if client is None:
            return

        was = client.phase
        if client.tick(now):
            self.abort()
        if was is not client.phase:
            self._note(client)

    def abort(self) -> None:
        if self._transport is not None:
            discard(self._transport.get_extra_info("socket"))
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        server = self._server
        self._transport = None
        if self._resuming is not None:
            self._resuming.cancel()
        server._admission.leave(self)
        server._connections.discard(self)
        client = self.client
        if client is not None:
            was_connected = client.phase is Phase.CONNECTED
            client.lost()
            if was_connected:
                self._note(client)
            server.flush()
        if server._draining and not server._connections:
            server._gone.set()

    def _note(self, client: Client) -> None:
        """Log that a client connected or left. Clients that do not prove an id are only counted."""
        if client.phase is Phase.CONNECTED:
            self._admitted = True
            self._server._admission.proved(self)
            self._server._refusals.forget(client.key)
            _log.info("%s connected from %s (%s)", client.key.hex()[:10], client.host, client.version)
        elif client.key and client.phase is Phase.CLOSING and not self._admitted:
            self._server._log_refusal(client)
        elif client.key and client.phase is Phase.CLOSING:
            _log.info("%s disconnected: %s", client.key.hex()[:10], client.ending)
