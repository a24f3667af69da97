"""HTTP/1.1 on a socket: POST with a JSON body, and `GET /health`.

It uses h11 over asyncio's streams. h11 is installed anyway (solana-py's HTTP client needs it), parses strictly and does no I/O. A
web framework would add routing and middleware that one path does not need. asyncio is used because websockets and solana-py need
it, too. Bodies over the limit, other media types (415) and other methods (405) get errors, as from real validators. Connections
that send nothing for a while are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

import h11

from psyche_backend_solana.localnet.settings import Limits

logger: logging.Logger = logging.getLogger("psyche.backend.solana.localnet")

_CHUNK = 64 * 1024
_LOST = (ConnectionError, TimeoutError, h11.RemoteProtocolError, h11.LocalProtocolError)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """A response."""

    status: int
    body: bytes
    content_type: str = "application/json"


Answer = Callable[[bytes], Awaitable[HttpAnswer | None]]
"""Handles a request's body and returns the response; None closes the connection without one."""


def plain(status: HTTPStatus, sentence: str = "") -> HttpAnswer:
    """A response with plain text."""
    return HttpAnswer(status=status, body=f"{sentence or status.phrase}\n".encode(), content_type="text/plain")


class HttpServer:
    """Serves a bound socket until it is closed."""

    def __init__(self, answer: Answer, *, limits: Limits) -> None:
        self._answer = answer
        self._limits = limits
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, listening: socket.socket) -> None:
        """Accept connections."""
        self._server = await asyncio.start_server(self._attend, sock=listening)

    async def aclose(self) -> None:
        """Stop listening and cut every connection; idempotent."""
        if self._server is None:
            return

        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio serves connections in tasks"
        self._tasks.add(task)
        try:
            if len(self._tasks) <= self._limits.connections:
                await _Connection(reader, writer, self._answer, self._limits).run()
        except (*_LOST, asyncio.CancelledError):  # cancelled: the server closes
            pass
        except Exception:  # an error in one connection must not affect others
            logger.exception("a connection failed")
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


class _Connection:
    """The requests and responses of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer, limits: Limits) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._limits = limits
        self._protocol = h11.Connection(h11.SERVER)

    async def run(self) -> None:
        """Serve requests until either side closes."""
        while True:
            try:
                async with asyncio.timeout(self._limits.idle_seconds):
                    answer = await self._request()
            except h11.RemoteProtocolError as error:
                if self._protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    await self._respond(plain(HTTPStatus(error.error_status_hint)))
                return

            if isinstance(answer, bytes):
                answer = await self._answer(answer)
            if answer is None:
                return

            await self._respond(answer)
            if self._protocol.our_state is not h11.DONE or self._protocol.their_state is not h11.DONE:
                await self._finish()
                return

            self._protocol.start_next_cycle()

    async def _request(self) -> bytes | HttpAnswer | None:
        """The next request's body, or the response to a request that is not a POST of JSON; None if the client disconnected."""
        request = await self._event()
        if not isinstance(request, h11.Request):
            return None

        headers = {name: value.decode("latin-1") for name, value in request.headers}
        media = headers.get(b"content-type", "").partition(";")[0].strip().lower()
        if request.method == b"GET" and request.target == b"/health":
            return plain(HTTPStatus.OK, "ok") if await self._body() is not None else None
        if request.method != b"POST":
            return plain(HTTPStatus.METHOD_NOT_ALLOWED, "Used HTTP Method is not allowed. POST is required")
        if media != "application/json":
            return plain(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, 'the content type must be "application/json"')

        if self._protocol.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        body = await self._body()
        if body is None:
            return plain(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {self._limits.request_bytes} bytes")

        return body

    async def _body(self) -> bytes | None:
        """The request's body; None if it is over the limit."""
        body = bytearray()
        while isinstance(event := await self._event(), h11.Data):
            body += event.data
            if len(body) > self._limits.request_bytes:
                return None

        return bytes(body)

    async def _event(self) -> object:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            self._protocol.receive_data(await self._reader.read(_CHUNK))
        return event

    async def _respond(self, answer: HttpAnswer) -> None:
        headers = [("content-type", answer.content_type), ("content-length", str(len(answer.body)))]
        if answer.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            headers.append(("retry-after", "1"))
        reason = HTTPStatus(answer.status).phrase if answer.status in list(HTTPStatus) else "Unknown"
        head = h11.Response(status_code=answer.status, headers=headers, reason=reason.encode())
        await self._send(head, h11.Data(data=answer.body), h11.EndOfMessage())

    async def _send(self, *events: h11.Event) -> None:
        """Send all events in one write: several small writes would each wait for an acknowledgement."""
        self._writer.write(b"".join(self._protocol.send(event) or b"" for event in events))
        async with asyncio.timeout(self._limits.idle_seconds):
            await self._writer.drain()

    async def _finish(self) -> None:
        """Close our direction and wait until the response has arrived: closing with unread bytes would discard it."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()
        left = self._limits.request_bytes * 4
        async with asyncio.timeout(1.0):
            while left > 0 and (data := await self._reader.read(_CHUNK)):
                left -= len(data)
