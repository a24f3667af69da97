"""A real web server on the loopback interface that serves a folder, and misbehaves on request."""

from __future__ import annotations

import ssl
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest

from plugins.data_http.tests.bucket_emulators import S3_HEADERS, S3Bucket, started, stopped
from psyche_core.testing.ports import free_port
from psyche_data_http import retries
from psyche_data_http.fetch.client import RangeClient
from psyche_data_http.provider import HttpData
from psyche_data_http.shared_resources import SharedResources
from psyche_data_http.sources.web_files import WebFiles


@dataclass
class WebServer:
    """faults: taken one per GET; always: the fault of every request after them. requests: (method, path, Range) as they came.

    pause: the Retry-After of a 429. redirects: from path to address. before_answer: called for each GET with the number of it.
    """

    folder: Path
    faults: deque[str] = field(default_factory=deque)
    always: str = ""
    head_fault: str = ""
    pause: str = ""
    accept_ranges: str = ""
    redirects: dict[str, str] = field(default_factory=dict)
    before_answer: Callable[[int], None] = lambda number: None
    scheme: str = "http"
    validators: bool = True
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    conditions: list[str | None] = field(default_factory=list)
    authorizations: set[str | None] = field(default_factory=set)
    connections: set[tuple[str, int]] = field(default_factory=set)
    running: int = 0
    most_running: int = 0
    port: int = 0
    hold: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, name: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/{name}"

    def urls(self) -> list[str]:
        return [self.url(path.name) for path in sorted(self.folder.iterdir())]

    def gets(self) -> list[str]:
        return [content_range for method, _, content_range in self.requests if method == "GET"]


MakeHttpData = Callable[..., HttpData]
RowsOf = Callable[[WebServer], str]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Listener

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        web = self.begin()
        if self.path in web.redirects:
            self.answer(302, b"", {"Location": web.redirects[self.path]}, body=False)
        elif not self.file().exists():
            self.answer(404, b"", body=False)
        elif web.head_fault:
            self.answer(int(web.head_fault), b"", body=False)
        else:
            self.answer(200, self.content(), body=False)

    def do_GET(self) -> None:
        web = self.begin()
        with web.lock:
            fault = web.faults.popleft() if web.faults else web.always
            web.running += 1
            web.most_running = max(web.most_running, web.running)
        web.before_answer(len(web.gets()))
        try:
            if self.path in web.redirects:
                self.answer(302, b"", {"Location": web.redirects[self.path]})
            elif not self.file().exists():
                self.answer(404, b"")
            else:
                self.get(web, fault)
        finally:
            with web.lock:
                web.running -= 1

    def begin(self) -> WebServer:
        web = self.server.web
        with web.lock:
            web.requests.append((self.command, self.path, self.headers.get("Range", "")))
            web.connections.add(self.client_address)
            web.authorizations.add(self.headers.get("Authorization"))
            if self.command == "GET":
                web.conditions.append(self.headers.get("If-Range"))
        return web

    def content(self) -> bytes:
        return self.file().read_bytes()

    def file(self) -> Path:
        return self.server.web.folder / self.path.lstrip("/").partition("?")[0]

    def etag(self, content: bytes) -> str:
        return f'"{sha256(content).hexdigest()[:16]}"'

    def get(self, web: WebServer, fault: str) -> None:
        if fault.isdecimal():
            return self.answer(int(fault), b"sorry")
        if fault == "busy":
            return self.answer(429, b"sorry", {"Retry-After": web.pause})
        if fault == "drop":
            self.close_connection = True
            return None
        if fault == "hold":
            web.hold.wait(20)

        content = self.content()
        first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        same = self.headers.get("If-Range") in (None, self.etag(content))
        if not first or fault in ("ignore range", "unsized") or not same:
            return self.answer(200, content, sized=fault != "unsized")

        start, end = int(first), min(int(last), len(content) - 1)
        if start >= len(content):
            return self.answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})

        piece = content[start : end + 1]
        headers = {"Content-Range": f"bytes {start}-{end}/{len(content)}"}
        match fault:
            case "cut":
                self.answer(206, piece, headers, sent=len(piece) // 2)
            case "slow":
                self.answer(206, piece, headers, sent=0)
                for at in range(len(piece)):
                    self.wfile.write(piece[at : at + 1])
                    self.wfile.flush()
                    web.hold.wait(0.03)
            case "stall":
                self.answer(206, piece, headers, sent=len(piece) // 2, stall=True)
            case "short range":
                half = piece[: max(1, len(piece) // 2)]
                self.answer(206, half, {"Content-Range": f"bytes {start}-{start + len(half) - 1}/{len(content)}"})
            case "long":
                self.answer(206, piece + b"xx", headers)
            case "long and unsized":
                self.answer(206, piece + b"xx", headers, sized=False)
            case "short and unsized":
                self.answer(206, piece[:-1], headers, sized=False)
            case "inner range":
                self.answer(206, piece[1:], {"Content-Range": f"bytes {start + 1}-{end}/{len(content)}"})
            case "longer range":
                more = content[start : end + 2]
                self.answer(206, more, {"Content-Range": f"bytes {start}-{end + 1}/{len(content)}"})
            case "other range":
                self.answer(206, piece, {"Content-Range": f"bytes {start + 2}-{end + 2}/{len(content)}"})
            case "other size":
                self.answer(206, piece, {"Content-Range": f"bytes {start}-{end}/{len(content) + 8}"})
            case "no content range":
                self.answer(206, piece)
            case "gzip":
                self.answer(206, piece, headers | {"Content-Encoding": "gzip"})
            case _:
                self.answer(206, piece, headers)
        return None

    def answer(
        self,
        status: int,
        content: bytes,
        headers: dict[str, str] | None = None,
        *,
        body: bool = True,
        sent: int | None = None,
        stall: bool = False,
        sized: bool = True,
    ) -> None:
        web = self.server.web
        self.send_response(status)
        if sized:
            self.send_header("Content-Length", str(len(content)))
        else:
            self.send_header("Connection", "close")
        if web.accept_ranges:
            self.send_header("Accept-Ranges", web.accept_ranges)
        if web.validators and status in (200, 206):
            self.send_header("ETag", self.etag(self.content()))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content[:sent])
        if stall:
            self.wfile.flush()
            web.hold.wait(20)
        if sent is not None:
            self.close_connection = True


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    web: WebServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that gave up mid-answer is part of the tests


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def token_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tokens"
    folder.mkdir()
    return folder


@contextmanager
def serving(server: WebServer, context: ssl.SSLContext | None = None) -> Iterator[WebServer]:
    listener = Listener(("127.0.0.1", 0), Handler)
    listener.web = server
    server.port = listener.server_address[1]
    if context is not None:
        server.scheme = "https"
        listener.socket = context.wrap_socket(listener.socket, server_side=True)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.hold.set()
        listener.shutdown()
        thread.join()
        listener.server_close()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxies and no credentials of the machine's."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.001)


@pytest.fixture
def web(token_folder: Path) -> Iterator[WebServer]:
    """The server, serving `token_folder`."""
    with serving(WebServer(token_folder)) as server:
        yield server


@pytest.fixture
def other_web(tmp_path: Path) -> Iterator[WebServer]:
    """A second server, with a folder of its own."""
    folder = tmp_path / "other"
    folder.mkdir()
    with serving(WebServer(folder)) as server:
        yield server


@pytest.fixture
def secure_web(token_folder: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """The server with TLS; clients opened in this test trust it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving(WebServer(token_folder), context) as server:
        yield server


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and its own certificate for 127.0.0.1."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.fixture
def http_data() -> MakeHttpData:
    """Makes a provider of rows of 4 tokens of 2 bytes: of addresses, with settings of the client, resources and provider."""

    def make(
        urls: Sequence[str],
        *,
        sequence_length: int = 4,
        cache: Path | None = None,
        cache_bytes: int = 1 << 20,
        connections: int = 8,
        stall_seconds: float = 20.0,
        **settings: Any,
    ) -> HttpData:
        resources = SharedResources(
            RangeClient(connections=connections, stall_seconds=stall_seconds), cache=cache, cache_bytes=cache_bytes
        )
        return HttpData(WebFiles(urls, resources.client), resources, sequence_length=sequence_length, token_size=2, **settings)

    return make


@pytest.fixture
def rows_of() -> RowsOf:
    """Puts a file of 40 sequences of 8 bytes, the number of each repeated, on a server; returns its address."""

    def put(server: WebServer) -> str:
        (server.folder / "rows.bin").write_bytes(b"".join(bytes([number]) * 8 for number in range(40)))
        return server.url("rows.bin")

    return put


@pytest.fixture
def rows(web: WebServer, rows_of: RowsOf) -> str:
    """The address of that file on the usual server."""
    return rows_of(web)


@pytest.fixture(scope="session")
def s3_emulator() -> Iterator[str]:
    pytest.importorskip("moto.server")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    process = started([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], address)
    yield address
    stopped(process)


@pytest.fixture
def s3(s3_emulator: str) -> S3Bucket:
    name = f"tokens-{uuid.uuid4().hex}"
    httpx.put(f"{s3_emulator}/{name}", headers=S3_HEADERS).raise_for_status()
    return S3Bucket(s3_emulator, name)
