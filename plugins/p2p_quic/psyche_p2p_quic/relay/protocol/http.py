"""The HTTP answers of a relay, without I/O: which requests become WebSockets, which get a page, which are refused.

h11 reads and writes HTTP/1.1 and limits what it keeps of a request. Every page ends its connection, because callers ask once.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import h11

from psyche_p2p_quic.relay.protocol.frames import VERSIONS
from psyche_p2p_quic.relay.protocol.websocket import accept_token

MAX_REQUEST_BYTES = 8192
RELAY_PATH = "/relay"
_CHALLENGE = re.compile(rb"[A-Za-z0-9._-]{1,63}")
_TOKEN = re.compile(r"[Bb]earer +([!-~]{1,512})")


@dataclass(frozen=True, slots=True)
class Page:
    """An answer that is not a WebSocket. body: text."""

    body: str = ""
    kind: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: tuple[tuple[str, str], ...] = ()


Pages = Mapping[str, Callable[[str], Page | None]]
"""By path, a function that makes the page for a caller's IP address; it returns None if the page is not for that caller."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer to send before closing. problem: what was wrong with the request, "" if nothing was."""

    data: bytes
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Upgraded:
    """An answer to send before WebSocket frames follow. version: of the relay protocol. token: the one that the client sent.

    rest: bytes that have already arrived after the request.
    """

    data: bytes
    version: str
    token: str | None = field(repr=False)
    rest: bytes


class RequestReader:
    """Reads one request of one connection and answers it.

    pages: what can be requested besides the relay itself. host: the caller's.
    """

    __slots__ = ("_h11", "_head_only", "_host", "_pages")

    def __init__(self, pages: Pages, host: str) -> None:
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_BYTES)
        self._head_only = False
        self._host = host
        self._pages = pages

    def feed(self, data: bytes) -> Answered | Upgraded | None:
        """Take bytes in; return None while the request is incomplete. No more bytes may be passed after an answer."""
        self._h11.receive_data(data)
        try:
            event = self._h11.next_event()
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            return self._page(Page(f"{status.phrase}\n", status=status), "not a valid HTTP/1.1 request")

        if event is h11.NEED_DATA:
            return None
        if not isinstance(event, h11.Request):
            return Answered(b"", "closed before the request was complete")
        return self._answer(event)

    def _answer(self, request: h11.Request) -> Answered | Upgraded:
        self._head_only = request.method == b"HEAD"
        path = request.target.partition(b"?")[0].decode("latin-1")
        if request.method not in {b"GET", b"HEAD"}:
            return self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered", (("Allow", "GET, HEAD"),))
        if path == RELAY_PATH:
            return self._upgrade(request)
        if path == "/generate_204":
            return self._page(_captive_portal_answer(request))

        make = self._pages.get(path)
        page = None if make is None else make(self._host)
        if page is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "no such path")
        return self._page(page)

    def _upgrade(self, request: h11.Request) -> Answered | Upgraded:
        headers = dict(request.headers)  # h11 lower-cases names; the last one of a repeated header is used
        key = headers.get(b"sec-websocket-key", b"")
        if not (
            request.method == b"GET"
            and headers.get(b"upgrade", b"").lower() == b"websocket"
            and b"upgrade" in _words(headers.get(b"connection", b"").lower())
            and headers.get(b"sec-websocket-version") == b"13"
            and _is_nonce(key)
        ):
            return self._refuse(
                HTTPStatus.UPGRADE_REQUIRED,
                "expected the request of a WebSocket, version 13",
                (("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")),
            )

        if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
            return self._refuse(HTTPStatus.BAD_REQUEST, "expected a request without a body")

        offered = _words(headers.get(b"sec-websocket-protocol", b""))
        version = next((version for version in VERSIONS if version.encode() in offered), None)
        if version is None:
            return self._refuse(HTTPStatus.BAD_REQUEST, f"expected Sec-WebSocket-Protocol to offer one of {', '.join(VERSIONS)}")

        response = h11.InformationalResponse(
            status_code=101,
            headers=[
                ("Upgrade", "websocket"),
                ("Connection", "Upgrade"),
                ("Sec-WebSocket-Accept", accept_token(key).decode()),
                ("Sec-WebSocket-Protocol", version),
            ],
            reason=b"Switching Protocols",
        )
        self._h11.next_event()  # the end of the request, after which h11 pauses
        rest = self._h11.trailing_data[0]
        bearer = _TOKEN.fullmatch(headers.get(b"authorization", b"").decode("latin-1"))
        return Upgraded(self._h11.send(response) or b"", version, bearer[1] if bearer else None, rest)

    def _refuse(self, status: HTTPStatus, problem: str, headers: tuple[tuple[str, str], ...] = ()) -> Answered:
        return self._page(Page(f"{problem}\n", status=status, headers=headers), problem)

    def _page(self, page: Page, problem: str = "") -> Answered:
        body = page.body.encode()
        headers = [*page.headers, ("Connection", "close")]
        if page.status is not HTTPStatus.NO_CONTENT:
            headers += [("Content-Type", page.kind), ("Content-Length", str(len(body)))]
        response = h11.Response(status_code=page.status, headers=headers, reason=page.status.phrase.encode())
        head = self._h11.send(response) or b""
        return Answered(head if self._head_only else head + body, problem)


def upgrade_request(host: str, *, nonce: bytes, token: str | None) -> bytes:
    """Return a client's request to a relay at `host`. nonce: 16 random bytes. token: to show to the relay."""
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    return (
        f"GET {RELAY_PATH} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(nonce).decode()}\r\n"
        f"Sec-WebSocket-Protocol: {', '.join(VERSIONS)}\r\n{bearer}\r\n"
    ).encode()


def _captive_portal_answer(request: h11.Request) -> Page:
    """Return the page by which a client verifies that nobody between us answers in our place."""
    challenge = dict(request.headers).get(b"x-iroh-challenge", b"")
    known = _CHALLENGE.fullmatch(challenge) is not None
    headers = (("X-Iroh-Response", f"response {challenge.decode('ascii')}"),) if known else ()
    return Page(status=HTTPStatus.NO_CONTENT, headers=headers)


def _words(value: bytes) -> list[bytes]:
    return [word.strip() for word in value.split(b",")]


def _is_nonce(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False
