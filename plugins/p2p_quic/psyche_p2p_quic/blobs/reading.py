"""Reads the answer to a blob request: its head, then its body in parts whose size follows the speed of the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Protocol

import anyio

from psyche_core.p2p.blob_store import sha256
from psyche_core.p2p.fetch_plan import Answer
from psyche_p2p_quic.blobs.frames import BLOB_HEAD_BYTES, BlobHead, BlobRequest
from psyche_p2p_quic.endpoint.links import Stream

READ_BYTES = 512 * 1024
READ_SECONDS = 0.1
"""A body is read in parts that take about this long, of at most READ_BYTES each. Every part costs a call into the library, and
progress is noticed only between parts."""

FAST_PARTS = 2
"""This many parts in a row must be fast before the next one is larger. Data that was already buffered arrives at once and shows
little about the speed of the connection."""

_RESERVE_AFTER_FRACTION = 1 / 8
"""Memory for the whole body is reserved once this fraction of it has come. A head alone can claim any length."""

_WORTH_WAITING_BYTES = 32 * 1024


class Progress(Protocol):
    """What is noted about an answer. size: bytes of its body, None before the head came. received: of the body, so far."""

    size: int | None
    received: int


@dataclass(slots=True)
class _Parts:
    """How much of a body is read at once: more after fast parts, less after a slow one, so that slow progress is noticed."""

    size: int = _WORTH_WAITING_BYTES // 2
    _fast: int = 0

    def took(self, seconds: float) -> None:
        """Note how long the last part took, or would have taken if it had been complete."""
        if seconds > READ_SECONDS:
            self._fast, self.size = 0, max(self.size // 2, _WORTH_WAITING_BYTES // 2)
            return

        self._fast += 1
        if self._fast > FAST_PARTS:
            self.size = min(2 * self.size, READ_BYTES)


async def read_head(stream: Stream, request: BlobRequest, *, seconds: float, count: Callable[[int], None]) -> BlobHead | Answer:
    """Send a request and read the head of the answer; an Answer if no body follows.

    seconds: longest wait. count: is told of received bytes. Raises TimeoutError, LinkLost, WireError.
    """
    with anyio.fail_after(seconds):
        await stream.write(request.encode())
        await stream.finish()
        head = BlobHead.decode(await stream.read_exactly(BLOB_HEAD_BYTES))
    count(BLOB_HEAD_BYTES)
    if not head.found:
        return Answer.ABSENT

    return Answer.TOO_LARGE if head.length > request.max_bytes else head


async def read_body(
    stream: Stream,
    length: int,
    *,
    seconds: float,
    least: Callable[[], float] = float,
    progress: Progress,
    count: Callable[[int], None],
) -> BytesIO | Answer:
    """Read a body; LOST if the stream ends before.

    seconds: longest wait for one part. least: returns the bytes a second that must come in each time of that length, else 0.
    Raises TimeoutError for a source that is slower, and LinkLost.
    """
    now = asyncio.get_running_loop().time
    progress.size = length
    body = BytesIO()  # getvalue() needs no further copy
    roomy = False
    parts, began = _Parts(), now()
    looked_at, seen = began, 0
    with anyio.CancelScope(deadline=began + seconds) as patience:  # one scope for all reads is cheaper than one for each
        while progress.received < length:
            part = min(length - progress.received, parts.size)
            chunk = await (stream.read_exactly(part) if part >= _WORTH_WAITING_BYTES else stream.read(part))
            began, before = now(), began
            if not chunk:
                return Answer.LOST

            parts.took((began - before) * part / len(chunk))
            if not roomy and progress.received + len(chunk) >= _RESERVE_AFTER_FRACTION * length:
                roomy = True  # reserve the rest now, because growing step by step would copy the data several times
                body.seek(length - 1)
                body.write(b"\0")
                body.seek(progress.received)
            body.write(chunk)
            progress.received += len(chunk)
            count(len(chunk))
            if began - looked_at >= seconds:
                if progress.received - seen < least() * (began - looked_at):
                    break
                looked_at, seen = began, progress.received
            patience.deadline = began + seconds
        else:
            return body

    message = f"a source sent too little for {seconds:g} s"
    raise TimeoutError(message)


async def verified(body: BytesIO, blob_hash: bytes) -> bytes | None:
    """Return the body as a blob, None when its hash does not match."""
    blob = body.getvalue()
    return blob if await sha256(blob) == blob_hash else None
