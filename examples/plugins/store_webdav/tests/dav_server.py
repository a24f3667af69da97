"""A WebDAV server on this machine: wsgidav, on a free port, with a folder of its own, if wished with TLS."""

from __future__ import annotations

import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from wsgidav.wsgidav_app import WsgiDAVApp

USER, PASSWORD = "somebody", "a secret"


@dataclass(slots=True)
class DavServer:
    """host: HOST:PORT. folder: what it serves. asked: method and path of each request."""

    host: str
    folder: Path
    asked: list[tuple[str, str]]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that do not want our certificate; of other errors as usual."""
        if not isinstance(sys.exception(), ssl.SSLError | ConnectionError):
            super().handle_error(request, client_address)


class _Body:
    """What a request carries, with an end: wsgiref's own reads on into what comes after it."""

    def __init__(self, file: Any, length: int) -> None:
        self._file, self._left = file, length

    def read(self, size: int = -1) -> bytes:
        found: bytes = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(found)
        return found


class _Handler(WSGIRequestHandler):
    def log_message(self, *words: Any) -> None:
        """Nothing."""


@contextmanager
def dav_server(
    folder: Path, *, needs_password: bool = False, certificate: Path | None = None, scheme: str = ""
) -> Iterator[DavServer]:
    """A server while the block runs.

    certificate: with its key, as PEM; None: without TLS. scheme: what the application believes; by default, the truth.
    """
    users: Any = {USER: {"password": PASSWORD}} if needs_password else True
    application = WsgiDAVApp(
        {
            "provider_mapping": {"/": str(folder)},
            "simple_dc": {"user_mapping": {"*": users}},
            "http_authenticator": {"accept_basic": True, "accept_digest": False, "default_to_digest": False},
            "lock_storage": None,
            "property_manager": None,
            "verbose": 0,
            "logging": {"enable": False},
        }
    )
    asked: list[tuple[str, str]] = []

    def noted(environment: dict[str, Any], start: Any) -> Any:
        asked.append((environment["REQUEST_METHOD"], environment["PATH_INFO"]))
        environment["wsgi.url_scheme"] = scheme or ("http" if certificate is None else "https")
        environment["wsgi.input"] = _Body(environment["wsgi.input"], int(environment.get("CONTENT_LENGTH") or 0))
        return application(environment, start)

    server = _Server(("127.0.0.1", 0), _Handler)
    server.set_app(noted)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        # no handshake in accept: a client that does not end it must not hold up the others
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield DavServer(f"127.0.0.1:{server.server_port}", folder, asked)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
