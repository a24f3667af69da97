"""A real web server on the loopback interface that serves a folder, and misbehaves on request."""

import threading
from collections import deque
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@dataclass
class WebServer:
    """faults: taken one per GET; always: the fault of every request after them. requests: (method, path, Range) as they came."""

    folder: Path
    faults: deque = field(default_factory=deque)
    always: str = ""
    head_fault: str = ""
    validators: bool = True
    requests: list = field(default_factory=list)
    conditions: list = field(default_factory=list)
    connections: set = field(default_factory=set)
    running: int = 0
    most_running: int = 0
    port: int = 0
    hold: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}"

    def urls(self) -> list[str]:
        return [self.url(path.name) for path in sorted(self.folder.iterdir())]

    def gets(self) -> list[str]:
        return [content_range for method, _, content_range in self.requests if method == "GET"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Listener"

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        web = self.begin()
        if web.head_fault:
            self.answer(int(web.head_fault), b"", body=False)
        else:
            self.answer(200, self.content(), body=False)

    def do_GET(self):
        web = self.begin()
        with web.lock:
            fault = web.faults.popleft() if web.faults else web.always
            web.running += 1
            web.most_running = max(web.most_running, web.running)
        try:
            self.get(web, fault)
        finally:
            with web.lock:
                web.running -= 1

    def begin(self) -> WebServer:
        web = self.server.web
        with web.lock:
            web.requests.append((self.command, self.path, self.headers.get("Range", "")))
            web.connections.add(self.client_address)
            if self.command == "GET":
                web.conditions.append(self.headers.get("If-Range"))
        return web

    def content(self) -> bytes:
        return (self.server.web.folder / self.path.lstrip("/").partition("?")[0]).read_bytes()

    def etag(self, content: bytes) -> str:
        return f'"{sha256(content).hexdigest()[:16]}"'

    def get(self, web: WebServer, fault: str) -> None:
        if fault.isdecimal():
            return self.answer(int(fault), b"sorry")
        if fault == "503 for long":
            return self.answer(503, b"sorry", {"Retry-After": "30"})
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

    def answer(self, status, content, headers=None, *, body=True, sent=None, stall=False, sized=True):
        web = self.server.web
        self.send_response(status)
        if sized:
            self.send_header("Content-Length", str(len(content)))
        else:
            self.send_header("Connection", "close")
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

    def handle_error(self, request, client_address):
        pass  # a client that gave up mid-answer is part of the tests


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def token_folder(tmp_path) -> Path:
    folder = tmp_path / "tokens"
    folder.mkdir()
    return folder


@pytest.fixture
def web(token_folder, monkeypatch):
    """The server, serving `token_folder`."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = WebServer(token_folder)
    listener = Listener(("127.0.0.1", 0), Handler)
    listener.web = server
    server.port = listener.server_address[1]
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.hold.set()
    listener.shutdown()
    thread.join()
    listener.server_close()
