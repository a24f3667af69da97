"""HTTP client for sizes, ranges and small documents; each call makes one attempt. The only module that uses httpx.

Connections are kept and reused, at most `connections` at once. A connection that is silent for `stall_seconds` counts as lost;
there is no other timeout for an answer. Bodies are never decompressed. Redirects are followed, but not from https to http.
Proxies come from the usual environment variables. An attempt fails with TransientError if another may succeed; retries are made
in `retries`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import httpx

from psyche_core.errors import DataError
from psyche_data_http.addresses import Redaction, shown
from psyche_data_http.fetch.range_responses import (
    is_encoded,
    piece_length,
    refuse_change,
    refuse_encoding,
    refuse_failure,
    refuse_large_whole,
    refuse_whole,
    stated_length,
    stated_whole,
)
from psyche_data_http.file_source import RemoteFile, changed
from psyche_data_http.retries import TransientError

CONNECT_SECONDS = 10.0
STALL_SECONDS = 20.0
CONNECTIONS = 8

_NO_HEAD = frozenset({403, 405, 501})
_IDENTITY = {"Accept-Encoding": "identity"}


class RangeClient:
    """Connections to web servers. connections: most at once; stall_seconds: silence after which one counts as lost.

    Its methods make one attempt each and have no total timeout; they raise TransientError and DataError.
    """

    def __init__(self, *, connections: int = CONNECTIONS, stall_seconds: float = STALL_SECONDS) -> None:
        self._connections = connections
        self._timeout = httpx.Timeout(stall_seconds, connect=min(CONNECT_SECONDS, stall_seconds), pool=None)
        self._slots = anyio.Semaphore(connections)  # the HTTP library's own queue is slow with thousands waiting
        self._rangeless: set[str] = set()
        self._redaction = Redaction()
        self._http: httpx.AsyncClient | None = None

    async def open(self) -> None:
        """Open the client. Uses a thread, because certificates are read from disk."""
        self._redaction.begin()
        self._http = await anyio.to_thread.run_sync(self._connected)

    async def aclose(self) -> None:
        """Close all connections; idempotent."""
        http, self._http = self._http, None
        if http is not None:
            with anyio.move_on_after(CONNECT_SECONDS, shield=True):
                await http.aclose()
        self._redaction.end()

    async def find(self, url: str) -> RemoteFile:
        """Return size and validators of a file."""
        async with self._attempt(url):
            answer = await self._client.head(url, headers=_IDENTITY)
            size = stated_length(answer.headers)
            if answer.status_code not in _NO_HEAD and not (answer.is_success and (size is None or is_encoded(answer.headers))):
                refuse_failure(url, answer.status_code, answer.headers)
                return self._found(url, size, answer)

            return await self._find_by_range(url)

    async def receive(self, file: RemoteFile, start: int, wanted: int, received: bytearray) -> None:
        """Append up to `wanted` bytes from `start` to `received`; bytes appended before a failure are valid."""
        headers = _IDENTITY | {"Range": f"bytes={start}-{start + wanted - 1}"}
        if file.condition is not None:
            headers["If-Range"] = file.condition

        async with self._attempt(file.url), self._client.stream("GET", file.url, headers=headers) as answer:
            if answer.status_code in (404, 410) and file.version is not None:
                raise changed(file, f"version {file.version} is gone")

            refuse_failure(file.url, answer.status_code, answer.headers)
            refuse_encoding(file.url, answer.headers)
            refuse_change(file, answer.headers)
            if answer.status_code == 206:
                skip, sent = 0, piece_length(file, answer.headers, start, wanted)
            else:
                refuse_whole(file, answer.headers)
                self._rangeless.add(file.url)
                skip, sent = start, wanted

            taken = await _take(answer, skip, sent, received)
            if taken > sent and answer.status_code == 206:
                message = f"{file.name} sent more bytes than it announced; its server does not follow HTTP; use another server"
                raise DataError(message)

            if taken < sent:
                message = f"{file.name} ended after {taken} of {sent} bytes"
                raise TransientError(message)

    async def document(self, url: str, *, at_most: int) -> bytes:
        """Return a whole small file. Raises DataError if it is longer than `at_most` bytes."""
        async with self._attempt(url), self._client.stream("GET", url, headers=_IDENTITY) as answer:
            refuse_failure(url, answer.status_code, answer.headers)
            refuse_encoding(url, answer.headers)
            content = bytearray()
            async for chunk in answer.aiter_raw():
                content += chunk
                if len(content) > at_most:
                    message = f"{shown(url)} is longer than {at_most} bytes; check that it is the right file"
                    raise DataError(message)

            return bytes(content)

    def serves_ranges(self, file: RemoteFile) -> bool:
        """Return False once the server has ignored a range and sent the whole file, else True."""
        return file.url not in self._rangeless

    def _connected(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=self._connections, max_keepalive_connections=self._connections)
        hooks = {"response": [_refuse_downgrade]}
        return httpx.AsyncClient(timeout=self._timeout, limits=limits, follow_redirects=True, event_hooks=hooks)

    @property
    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            message = "open the client before reading with it"
            raise RuntimeError(message)

        return self._http

    @asynccontextmanager
    async def _attempt(self, url: str) -> AsyncIterator[None]:
        """Take one of our connection slots, and convert httpx's errors to ours."""
        async with self._slots:
            try:
                yield
            except httpx.UnsupportedProtocol as error:
                message = f"{shown(url)} leads to an address that is neither http nor https; use the one it should lead to"
                raise DataError(message) from error
            except httpx.TransportError as error:
                message = f"{shown(url)}: {_sentence(error)}"
                raise TransientError(message) from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                message = f"{shown(url)} cannot be read: {_sentence(error)}; check the address in data_location"
                raise DataError(message) from error

    async def _find_by_range(self, url: str) -> RemoteFile:
        """Find a file whose server refuses HEAD or gives no size in its answer: the answer for the first byte has the size."""
        async with self._client.stream("GET", url, headers=_IDENTITY | {"Range": "bytes=0-0"}) as answer:
            if answer.status_code == 416 and answer.headers.get("Content-Range") == "bytes */0":
                return self._found(url, 0, answer)

            refuse_failure(url, answer.status_code, answer.headers)
            refuse_encoding(url, answer.headers)
            size = stated_whole(answer.headers) if answer.status_code == 206 else stated_length(answer.headers)
            return self._found(url, size, answer)

    def _found(self, url: str, size: int | None, answer: httpx.Response) -> RemoteFile:
        if size is None:
            message = f"{shown(url)} does not say how long it is; put the file on a server that sends Content-Length"
            raise DataError(message)

        file = RemoteFile(url, size, answer.headers.get("ETag"), answer.headers.get("Last-Modified"))
        if answer.headers.get("Accept-Ranges") == "none":
            refuse_large_whole(file)
            self._rangeless.add(url)
        return file


async def _take(answer: httpx.Response, skip: int, sent: int, received: bytearray) -> int:
    """Append `sent` bytes of the body after the first `skip`. Return how many came, or one more if the body had more."""
    taken = 0
    async for chunk in answer.aiter_raw():
        fresh = chunk[skip:] if skip else chunk
        skip -= min(skip, len(chunk))
        wanted = sent - taken
        received += fresh if len(fresh) <= wanted else fresh[:wanted]
        taken += min(len(fresh), wanted + 1)
        if taken > sent or (taken == sent and answer.status_code == 200):
            break  # skip the rest; a range is read to its end instead, so that its connection can be reused

    return taken


async def _refuse_downgrade(answer: httpx.Response) -> None:
    """Raise DataError for a redirect from https to http, which would let anybody on the network change the tokens."""
    if answer.url.scheme == "https" and answer.has_redirect_location:
        target = answer.url.join(answer.headers["Location"])
        if target.scheme == "http":
            message = (
                f"{shown(str(answer.url))} leads from https to http ({shown(str(target))}), where anybody on the network could "
                "change the data; use an address that stays with https"
            )
            raise DataError(message)


def _sentence(error: Exception) -> str:
    return str(error) or type(error).__name__
