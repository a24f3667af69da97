"""The metrics port: a small web server for programs of this machine, in threads of its own.

`/metrics` is for Prometheus, `/` one JSON object, `/healthz` 200 or 503. Who connects and says nothing is sent the JSON object
alone, without HTTP, as by the Rust client (`nc 127.0.0.1 PORT`). It is bound to 127.0.0.1 and answers only requests to a name of
this machine, so that no page in a browser can read it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from psyche_core.errors import UserError
from psyche_core.exporters.local_status import LocalStatus
from psyche_core.telemetry.events import Event
from psyche_core.telemetry.metrics import MetricBook, Sample

HOST = "127.0.0.1"
SILENT_SECONDS = 1.0
"""Who sends nothing for this long gets the JSON object."""

REQUEST_SECONDS = 5.0
MAX_CONNECTIONS = 16
"""At once; further ones are closed."""

_OUR_NAMES = (HOST, "localhost", "::1")


class ProgramFigures:
    """A sink that collects what the port answers; read from other threads. clock: steady seconds, for tests."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._book = MetricBook()
        self._status = LocalStatus()

    def __call__(self, event: Event) -> None:
        """Enter an event."""
        with self._lock:
            self._book.handle(event)
            self._status.handle(event, now=self._clock())

    def samples(self) -> list[Sample]:
        """All figures."""
        with self._lock:
            return list(self._book.samples())

    def document(self) -> dict[str, Any]:
        """The JSON object."""
        with self._lock:
            return self._status.document()

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether the program is well, and why."""
        with self._lock:
            return self._status.health(now=self._clock())


@contextmanager
def serving_figures(figures: ProgramFigures, port: int, *, silent_seconds: float = SILENT_SECONDS) -> Iterator[int]:
    """Serve them while inside; gives the port. port: 0 picks a free one. Raises UserError if it cannot be used."""
    from psyche_core.exporters.prometheus import CONTENT_TYPE, exposition  # a missing library is said before anything starts

    def answer(path: str) -> tuple[int, str, bytes]:
        match path:
            case "/metrics":
                return 200, CONTENT_TYPE, exposition(figures.samples)
            case "/":
                return 200, "application/json", _json(figures.document())
            case "/healthz":
                well, why = figures.health()
                return 200 if well else 503, "application/json", _json(why)
            case _:
                return 404, "text/plain; charset=utf-8", b"there are /metrics, /healthz and / (JSON)\n"

    class Handler(_Handler):
        pass

    Handler.answer = staticmethod(answer)
    Handler.silent_seconds = silent_seconds
    try:
        server = _Server((HOST, port), Handler)
    except OSError as error:
        message = (
            f"cannot serve metrics on {HOST}, port {port}: {error.strerror}; choose another with --metrics-local-port, or 0 for "
            "any free one"
        )
        raise UserError(message) from error

    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="metrics port", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, or close it if there are too many."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In the connection's thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is nobody's problem."""


class _Handler(BaseHTTPRequestHandler):
    """One request a connection."""

    answer: Callable[[str], tuple[int, str, bytes]]
    silent_seconds: float = SILENT_SECONDS
    server_version = "psyche"
    sys_version = ""
    timeout = REQUEST_SECONDS

    def handle(self) -> None:
        """Wait for the first byte, then for a request."""
        self.connection.settimeout(self.silent_seconds)
        try:
            self.connection.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            with contextlib.suppress(OSError):
                self.connection.settimeout(REQUEST_SECONDS)
                self.connection.sendall(self.answer("/")[2])
            return
        self.connection.settimeout(REQUEST_SECONDS)
        with contextlib.suppress(OSError):
            self.handle_one_request()

    def do_GET(self) -> None:  # the base class's name
        """Answer."""
        self._reply(body=True)

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self._reply(body=False)

    def _reply(self, *, body: bool) -> None:
        name = urlsplit(f"//{self.headers.get('Host', HOST)}").hostname
        if name not in _OUR_NAMES:
            status, kind, content = 403, "text/plain; charset=utf-8", b"this port answers requests to 127.0.0.1 only\n"
        else:
            status, kind, content = self.answer(urlsplit(self.path).path)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Connection", "close")
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's word
        """Requests are not logged."""


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value) + "\n").encode()
