"""Serves the page from the event loop of the program that shows it. uvicorn is imported when it is used (extra `web`).

Requests of visitors are not logged, so that no token and no name reaches a log.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import anyio

from psyche_core.errors import UserError
from psyche_core.web.access import Access
from psyche_core.web.app import NEEDED, WebApp
from psyche_core.web.feeds import Feeds
from psyche_core.web.visitors import Speaker, Visit, VisitorLimits, welcome

if TYPE_CHECKING:
    import uvicorn

GOODBYE_SECONDS = 1
"""Seconds for open requests when the program ends. Streams are cut after that, and browsers try again by themselves."""


def listen(host: str, port: int) -> socket.socket:
    """Listen for browsers. port: 0 picks a free one. Raises UserError with one sentence."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        message = (
            f"cannot serve the page at {host}:{port}: {error.strerror}; choose another --web-port (or --port of `psyche web`)"
        )
        raise UserError(message) from error


def url_of(listening: socket.socket) -> str:
    """Return the address at which a browser on this machine finds the page."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104  # compared, not bound
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def new_server(feeds: Feeds, access: Access) -> uvicorn.Server:
    """Return the page's web server, not started; it does not accept connections itself. Raises UserError without its packages."""
    try:
        import uvicorn
    except ImportError as error:
        raise UserError(NEEDED) from error

    class Server(uvicorn.Server):
        """Does not handle signals: the program does."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        WebApp(feeds, access),
        access_log=False,
        log_config=None,
        log_level="error",  # anybody can send requests that are worth a warning
        server_header=False,
        lifespan="off",
        ws="none",
        http="h11",
        timeout_graceful_shutdown=GOODBYE_SECONDS,
    )
    return Server(config)


@contextlib.asynccontextmanager
async def serving(
    feeds: Feeds, access: Access, listening: socket.socket, *, limits: VisitorLimits | None = None
) -> AsyncIterator[str]:
    """Serve the page inside the block, within the limits; give its address. Closes the socket at the end."""
    limits = (limits or VisitorLimits()).within_open_files()
    accepting = anyio.CancelScope()

    async def accept() -> None:
        with accepting:
            await welcome(listening, limits, _speaker(server))

    with contextlib.closing(listening):
        server = new_server(feeds, access)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_serve, server)
            tasks.start_soon(accept)
            try:
                yield url_of(listening)
            finally:
                accepting.cancel()
                for feed in feeds:
                    feed.close()
                server.should_exit = True


async def _serve(server: uvicorn.Server) -> None:
    """Serve until asked to end. Shielded from cancellation: connections that nobody closes would outlive the server."""
    with anyio.CancelScope(shield=True):
        await server.serve(sockets=[])


def _speaker(server: uvicorn.Server) -> Speaker:
    """Return the HTTP protocol of the server's connections, with time limits that uvicorn alone does not have."""
    from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

    class Http(H11Protocol):
        """Reports the progress of a connection to its `Visit`."""

        def __init__(self, visit: Visit) -> None:
            super().__init__(server.config, server.server_state, {})
            self._visit = visit
            self._unread = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's
            super().connection_made(transport)
            self._visit.began(transport)
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            self._visit.left()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._look()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = True
            self._look()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._unread = False
            self._look()

        def _look(self) -> None:
            cycle: RequestResponseCycle | None = self.cycle  # None until the first head is complete
            self._visit.look(asks_nothing=cycle is None or cycle.response_complete, takes_nothing=self._unread)

    return Http
