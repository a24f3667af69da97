"""Limits the size of an HTTP client's answers before they are in memory.

An endpoint is somebody else's machine, so no more is read than the largest answer we can use, whatever length it announces. A
longer answer counts as a broken connection, and the next endpoint is asked. Compressed answers are an error, because a few bytes
can expand to any size; the headers ask for uncompressed ones. The content is parsed in `client` and `methods`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx2

MAX_ANSWER_BYTES = 32 * 2**20
"""Twice the size of ten thousand accounts of one kilobyte each in base64."""

UNCOMPRESSED = {"Accept-Encoding": "identity"}
"""Headers to send."""


def limit_answers(session: httpx2.AsyncClient, *, on_bytes: Callable[[int], object] = int) -> None:
    """Limit a session: reading more than MAX_ANSWER_BYTES of an answer raises httpx2.ReadError.

    on_bytes: called with the number of bytes of each chunk.
    """

    async def limit(response: httpx2.Response) -> None:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            message = "the answer is compressed, which was not asked for"
            raise httpx2.ReadError(message, request=response.request)

        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Limited(response.stream, response.request, on_bytes)

    session.event_hooks["response"].append(limit)


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, request: httpx2.Request, on_bytes: Callable[[int], object]) -> None:
        self._stream = stream
        self._request = request
        self._on_bytes = on_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_ANSWER_BYTES
        async for part in self._stream:
            left -= len(part)
            self._on_bytes(len(part))
            if left < 0:
                message = f"the answer has more than {MAX_ANSWER_BYTES} bytes"
                raise httpx2.ReadError(message, request=self._request)

            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
