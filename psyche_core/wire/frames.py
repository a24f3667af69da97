"""Length-prefixed frames over a byte stream: 4-byte big-endian length, then that many bytes.

The length is checked against a limit as soon as its four bytes are there, before anything is read or allocated for it. An empty
frame is refused, since no message encodes to nothing. `FrameDecoder` is pure; `FramedStream` puts it on an anyio byte stream.
What a frame means is up to the caller. There is no recovery from a peer that broke the rules: the caller closes the connection.
"""

from __future__ import annotations

from anyio import BrokenResourceError, ClosedResourceError, EndOfStream, get_cancelled_exc_class
from anyio.abc import ByteStream

from psyche_core.errors import WireError

HEADER_BYTES = 4
RECEIVE_BYTES = 64 * 1024


def frame(payload: bytes, *, limit: int) -> bytes:
    """The payload with its length before it. Raises WireError when it is empty or longer than `limit` bytes."""
    if not 0 < len(payload) <= limit:
        message = f"a frame carries 1 to {limit} bytes, got {len(payload)}"
        raise WireError(message)

    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class FrameDecoder:
    """Cuts a stream of bytes into frames.

    limit: most bytes of one frame; may be raised between frames, for instance after a login.
    """

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()

    @property
    def buffered(self) -> int:
        """Bytes received and not yet part of a returned frame; never more than the limit plus one `feed`."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Take in received bytes."""
        self._buffer += data

    def next(self) -> bytes | None:
        """The next complete frame, None when more bytes are needed. Raises WireError for a length against the rules."""
        if len(self._buffer) < HEADER_BYTES:
            return None

        length = int.from_bytes(self._buffer[:HEADER_BYTES], "big")
        if not 0 < length <= self.limit:
            message = f"a frame of {length} bytes was announced, expected 1 to {self.limit}"
            raise WireError(message)

        end = HEADER_BYTES + length
        if len(self._buffer) < end:
            return None

        payload = bytes(self._buffer[HEADER_BYTES:end])
        del self._buffer[:end]
        return payload


class FramedStream:
    """Frames over an anyio byte stream; owns the stream.

    stream: connected byte stream. receive_limit, send_limit: most bytes of one frame in each direction.
    `receive` is cancel-safe. A cancelled `send` leaves half a frame behind, so it breaks the stream for further sends.
    """

    def __init__(self, stream: ByteStream, *, receive_limit: int, send_limit: int) -> None:
        self._stream = stream
        self._decoder = FrameDecoder(limit=receive_limit)
        self._send_limit = send_limit
        self._send_broken = False
        self.bytes_received = 0
        self.bytes_sent = 0

    def set_receive_limit(self, limit: int) -> None:
        """Most bytes of each frame from now on."""
        self._decoder.limit = limit

    async def receive(self) -> bytes:
        """The next frame. Raises WireError (rules broken), anyio.EndOfStream (the peer closed), BrokenResourceError."""
        while True:
            payload = self._decoder.next()
            if payload is not None:
                return payload

            data = await self._stream.receive(RECEIVE_BYTES)
            self.bytes_received += len(data)
            self._decoder.feed(data)

    async def send(self, *payloads: bytes) -> None:
        """Send frames in order, as one write. Raises WireError (too long), BrokenResourceError (the connection is gone)."""
        if self._send_broken:
            raise BrokenResourceError

        data = b"".join(frame(payload, limit=self._send_limit) for payload in payloads)
        try:
            await self._stream.send(data)
        except get_cancelled_exc_class():
            self._send_broken = True
            raise

        self.bytes_sent += len(data)

    async def aclose(self) -> None:
        """Close the stream; idempotent, whatever state it is in."""
        self._send_broken = True
        try:
            await self._stream.aclose()
        except (BrokenResourceError, ClosedResourceError, EndOfStream, OSError):
            return
