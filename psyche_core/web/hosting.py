"""Serves the page from the event loop of the program that shows it. uvicorn is imported when called (extra `web`).

Nothing that a visitor asks for is logged, so that no token and no name ever reaches a log.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import anyio

from psyche_core.errors import UserError
from psyche_core.web.access import Access
from psyche_core.web.app import NEEDED, WebApp
from psyche_core.web.feeds import Feeds

if TYPE_CHECKING:
    import uvicorn

GOODBYE_SECONDS = 1
"""Time for open requests when the program ends; streams are cut then, and browsers try again by themselves."""


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
    """Where a browser on this machine finds the page."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104  # compared, not bound
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def new_server(feeds: Feeds, access: Access) -> uvicorn.Server:
    """The web server of the page, not started. Raises UserError without uvicorn or Starlette."""
    try:
        import uvicorn
    except ImportError as error:
        raise UserError(NEEDED) from error

    class Server(uvicorn.Server):
        """Leaves signals to the program."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        WebApp(feeds, access),
        access_log=False,
        log_config=None,
        server_header=False,
        lifespan="off",
        ws="none",
        http="h11",
        timeout_graceful_shutdown=GOODBYE_SECONDS,
        limit_concurrency=2048,
    )
    return Server(config)


@contextlib.asynccontextmanager
async def serving(feeds: Feeds, access: Access, listening: socket.socket) -> AsyncIterator[str]:
    """Serve the page inside the block; gives its address. Closes the socket at the end."""
    with contextlib.closing(listening):
        server = new_server(feeds, access)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_serve, server, listening)
            try:
                yield url_of(listening)
            finally:
                for feed in feeds:
                    feed.close()
                server.should_exit = True


async def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve until told to end. Not cancelled from outside: connections that nobody closes would outlive the server."""
    with anyio.CancelScope(shield=True):
        await server.serve(sockets=[listening])
