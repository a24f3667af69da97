"""Range reads over HTTP that resume, and refuse what is not the file they began with. The only module that knows httpx.

Decided: what may pass (no connection, a cut or stalled answer, 408, 425, 429, 5xx) is tried again with growing pauses until the
caller's deadline, going on from the last byte received; everything else is a DataError at once. A file is known by its size and
its ETag or Last-Modified: every read asks `If-Range`, and an answer with another validator or size is "changed". Bodies are
never decompressed, for ranges count stored bytes. Messages show addresses without user names and queries, which may be secrets.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx

from psyche_core.errors import DataError

MAX_SKIPPED_BYTES = 64 << 20
"""A server that ignores ranges sends the whole file each time; up to this many bytes of it are read past."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
LONGEST_ASKED_PAUSE = 30.0
CONNECT_SECONDS = 10.0

_PASSING = frozenset({408, 425, 429})
_NO_HEAD = frozenset({403, 405, 501})
_NUMBER = re.compile(r"[0-9]{1,19}")
"""A size or a place; longer ones are nobody's, and from 4301 digits on Python refuses to read them."""

_CONTENT_RANGE = re.compile(rf"bytes ({_NUMBER.pattern})-({_NUMBER.pattern})/({_NUMBER.pattern}|\*)")
_IDENTITY = {"Accept-Encoding": "identity"}

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as it was found. size in bytes; etag and modified as the server said them, None where it did not."""

    url: str
    size: int
    etag: str | None
    modified: str | None

    @property
    def condition(self) -> str | None:
        """What `If-Range` may hold: a strong ETag, else the date (RFC 9110, section 13.1.5)."""
        return self.etag if self.etag is not None and not self.etag.startswith("W/") else self.modified


class _PassingError(Exception):
    """Worth trying again. pause: seconds the server asked us to wait."""

    def __init__(self, message: str, *, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


class RangeClient:
    """Connections to web servers, kept and reused. connections: at most so many; stall_seconds: silence that counts as cut.

    Its methods have no time limit of their own: call them inside a cancel scope with a deadline. `last_trouble` then tells why
    it took so long.
    """

    def __init__(self, *, connections: int, stall_seconds: float) -> None:
        self.last_trouble = ""
        self._connections = connections
        self._timeout = httpx.Timeout(stall_seconds, connect=min(CONNECT_SECONDS, stall_seconds), pool=None)
        self._http: httpx.AsyncClient | None = None

    async def open(self) -> None:
        """Get ready; in a thread, because certificates are read from disk."""
        self._http = await anyio.to_thread.run_sync(self._connected)

    async def aclose(self) -> None:
        """Close all connections; idempotent."""
        http, self._http = self._http, None
        if http is not None:
            with anyio.move_on_after(CONNECT_SECONDS, shield=True):
                await http.aclose()

    async def find(self, url: str) -> RemoteFile:
        """Size and validators of a file. Raises DataError."""
        return await self._persist(lambda: self._find(url), url)

    async def read(self, file: RemoteFile, start: int, length: int) -> bytes:
        """Bytes start .. start + length - 1. Raises DataError, also when the file is no longer the one found."""
        received = bytearray()

        async def rest() -> None:
            while len(received) < length:
                await self._receive(file, start + len(received), length - len(received), received)

        await self._persist(rest, file.url)
        return bytes(received)

    def _connected(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=self._connections, max_keepalive_connections=self._connections)
        return httpx.AsyncClient(timeout=self._timeout, limits=limits, follow_redirects=True)

    @property
    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            message = "open the client before reading with it"
            raise RuntimeError(message)

        return self._http

    async def _persist(self, attempt: Callable[[], Awaitable[_Result]], url: str) -> _Result:
        pause = FIRST_PAUSE
        while True:
            try:
                return await attempt()
            except _PassingError as error:
                self.last_trouble = str(error)
                asked = error.pause
            except httpx.UnsupportedProtocol as error:
                message = f"{shown(url)} leads to an address that is neither http nor https"
                raise DataError(message) from error
            except httpx.TransportError as error:
                self.last_trouble = f"{shown(url)}: {_sentence(error)}"
                asked = 0.0
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                message = f"{shown(url)} cannot be read: {_sentence(error)}"
                raise DataError(message) from error

            await anyio.sleep(max(pause, asked))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _find(self, url: str) -> RemoteFile:
        answer = await self._client.head(url, headers=_IDENTITY)
        size = answer.headers.get("Content-Length", "")
        if answer.status_code in _NO_HEAD or (answer.is_success and (not _NUMBER.fullmatch(size) or _encoded(answer))):
            return await self._find_by_range(url)

        _refuse_failure(answer, url)
        return _found(url, int(size), answer)

    async def _find_by_range(self, url: str) -> RemoteFile:
        """For servers that refuse HEAD or say no size there: the first byte's answer tells the size of the whole."""
        async with self._client.stream("GET", url, headers=_IDENTITY | {"Range": "bytes=0-0"}) as answer:
            if answer.status_code == 416 and answer.headers.get("Content-Range") == "bytes */0":
                return _found(url, 0, answer)

            _refuse_failure(answer, url)
            _refuse_encoding(answer, url)
            if answer.status_code == 206:
                match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
                size = match.group(3) if match else ""
            else:
                size = answer.headers.get("Content-Length", "")

            if not _NUMBER.fullmatch(size):
                message = f"{shown(url)} does not say how long it is; put the file on a server that sends Content-Length"
                raise DataError(message)

            return _found(url, int(size), answer)

    async def _receive(self, file: RemoteFile, start: int, wanted: int, received: bytearray) -> None:
        """Append up to `wanted` bytes from `start` to `received`; whatever was appended stays valid when this fails."""
        headers = _IDENTITY | {"Range": f"bytes={start}-{start + wanted - 1}"}
        if file.condition is not None:
            headers["If-Range"] = file.condition

        async with self._client.stream("GET", file.url, headers=headers) as answer:
            _refuse_failure(answer, file.url)
            _refuse_encoding(answer, file.url)
            _refuse_change(answer, file)
            if answer.status_code == 206:
                skip, sent = 0, _sent_bytes(answer, file, start, wanted)
            else:
                skip, sent = _skipped_bytes(answer, file, start, wanted), wanted

            taken = 0
            async for chunk in answer.aiter_raw():
                fresh = chunk[skip:]
                skip -= min(skip, len(chunk))
                received += fresh[: sent - taken]
                taken += len(fresh)
                if taken > sent or (taken == sent and answer.status_code == 200):
                    break  # the rest is not ours; a range is read to its end instead, so that its connection is kept

        if taken > sent and answer.status_code == 206:
            message = f"{shown(file.url)} sent more bytes than it announced; its server does not follow HTTP"
            raise DataError(message)

        if taken < sent:
            message = f"{shown(file.url)} ended after {taken} of {sent} bytes"
            raise _PassingError(message)


def shown(url: str) -> str:
    """The address without user name, password, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _sentence(error: Exception) -> str:
    return str(error) or type(error).__name__


def _found(url: str, size: int, answer: httpx.Response) -> RemoteFile:
    return RemoteFile(url, size, answer.headers.get("ETag"), answer.headers.get("Last-Modified"))


def _encoded(answer: httpx.Response) -> bool:
    return bool(answer.headers.get("Content-Encoding", "identity") != "identity")


def _refuse_failure(answer: httpx.Response, url: str) -> None:
    """Raise for every status but 200 and 206."""
    status = answer.status_code
    if status in (200, 206):
        return

    if status in _PASSING or status >= 500:
        asked = answer.headers.get("Retry-After", "")
        pause = min(float(asked), LONGEST_ASKED_PAUSE) if asked.isdecimal() else 0.0
        message = f"{shown(url)}: the server answered {status} {answer.reason_phrase}"
        raise _PassingError(message, pause=pause)

    match status:
        case 404 | 410:
            message = f"{shown(url)} does not exist ({status}); check data_location.Http.location"
        case 401 | 403:
            message = f"{shown(url)} refuses access ({status}); make the file public or use an address that needs no login"
        case 416:
            message = f"{shown(url)} no longer has the bytes asked for (416); the file changed while it was in use"
        case _:
            message = f"{shown(url)}: unexpected answer {status} {answer.reason_phrase}; expected 200 or 206"

    raise DataError(message)


def _refuse_encoding(answer: httpx.Response, url: str) -> None:
    if _encoded(answer):
        encoding = answer.headers["Content-Encoding"]
        message = f"{shown(url)} is sent as {encoding} although plain bytes were asked for; switch compression off for it"
        raise DataError(message)


def _refuse_change(answer: httpx.Response, file: RemoteFile) -> None:
    """Raise when the answer carries another validator than the file was found with."""
    for name, before in (("ETag", file.etag), ("Last-Modified", file.modified)):
        now = answer.headers.get(name)
        if before is not None and now is not None:
            if now != before:
                raise _changed(file, f"its {name} was {before}, now {now}")
            return  # an equal ETag says more than a date


def _changed(file: RemoteFile, how: str) -> DataError:
    return DataError(
        f"{shown(file.url)} changed while it was in use ({how}); "
        "restore it or start again, so that everybody reads the same tokens"
    )


def _sent_bytes(answer: httpx.Response, file: RemoteFile, start: int, wanted: int) -> int:
    """How many bytes a 206 brings; it may be fewer than wanted. Raises DataError unless they are the right ones."""
    content_range = answer.headers.get("Content-Range", "")
    match = _CONTENT_RANGE.fullmatch(content_range)
    if match is None:
        message = f"{shown(file.url)} answered 206 with Content-Range {content_range!r}; expected 'bytes first-last/size'"
        raise DataError(message)

    first, last, size = int(match.group(1)), int(match.group(2)), match.group(3)
    if size not in ("*", str(file.size)):
        raise _changed(file, f"it had {file.size} bytes, now {size}")

    if first != start or not start <= last < start + wanted:
        message = f"{shown(file.url)} sent bytes {first} to {last}; asked for {start} to {start + wanted - 1}"
        raise DataError(message)

    length = answer.headers.get("Content-Length")
    if length is not None and length != str(last - first + 1):
        message = f"{shown(file.url)} announced {length} bytes for the range {content_range!r}; its server does not follow HTTP"
        raise DataError(message)

    return last - first + 1


def _skipped_bytes(answer: httpx.Response, file: RemoteFile, start: int, wanted: int) -> int:
    """How many bytes of a 200 (the whole file) come before the wanted ones. Raises DataError when it is not worth it."""
    length = answer.headers.get("Content-Length")
    if length is not None and length != str(file.size):
        raise _changed(file, f"it had {file.size} bytes, now {length}")

    if start + wanted > MAX_SKIPPED_BYTES:
        message = (
            f"{shown(file.url)}: the server sends whole files instead of ranges, and the file is too large for that "
            f"(over {MAX_SKIPPED_BYTES >> 20} MiB); use a server that answers range requests, or smaller files"
        )
        raise DataError(message)

    return start
