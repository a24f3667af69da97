"""Length-prefixed frames over a byte stream: 4-byte big-endian length, then that many bytes.

The length is checked against a limit as soon as its four bytes have arrived, before the payload is read or memory is allocated
for it. An empty frame is an error, because no message has an empty encoding. `FrameDecoder` is pure; `FramedStream` uses it on an
anyio byte stream. The caller interprets the frames. There is no recovery if a peer breaks the rules: the caller closes the
connection.
"""

from __future__ import annotations

from anyio import BrokenResourceError, ClosedResourceError, EndOfStream, get_cancelled_exc_class
from anyio.abc import ByteStream

from psyche_core.errors import WireError

HEADER_BYTES = 4
RECEIVE_BYTES = 64 * 1024


def frame(payload: bytes, *, limit: int) -> bytes:
    """Return the payload with its length in front. Raises WireError if it is empty or longer than `limit` bytes."""
    if not 0 < len(payload) <= limit:
        message = f"a frame carries 1 to {limit} bytes, got {len(payload)}"
        raise WireError(message)

    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class FrameDecoder:
    """Cuts a stream of bytes into frames.

    limit: maximum number of bytes of one frame; may be changed between frames, for example after a login.
    """

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def next(self) -> bytes | None:
        """Return the payload of the next complete frame, or None if more bytes are needed.

        Raises WireError for a length of 0 or above the limit.
        """
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
    """Frames over an anyio byte stream. Owns the stream.

    stream: connected byte stream. receive_limit, send_limit: maximum number of bytes of one frame in each direction.
    `receive` is safe to cancel. A cancelled `send` may have sent only part of a frame, so all later sends raise
    BrokenResourceError.
    """

    def __init__(self, stream: ByteStream, *, receive_limit: int, send_limit: int) -> None:
        self._stream = stream
        self._decoder = FrameDecoder(limit=receive_limit)
        self._send_limit = send_limit
        self._send_broken = False
        self.bytes_received: int = 0
        self.bytes_sent: int = 0

    def set_receive_limit(self, limit: int) -> None:
        """Set the maximum number of bytes of each received frame from now on."""
        self._decoder.limit = limit

    async def receive(self) -> bytes:
        """Return the next payload.

        Raises WireError (invalid length), anyio.EndOfStream (the peer closed the stream), BrokenResourceError (connection lost).
        """
        while True:
            payload = self._decoder.next()
            if payload is not None:
                return payload

            data = await self._stream.receive(RECEIVE_BYTES)
            self.bytes_received += len(data)
            self._decoder.feed(data)

    async def send(self, *payloads: bytes) -> None:
        """Send payloads as frames, in order, in one write.

        Raises WireError (empty or too long), BrokenResourceError (connection lost, or an earlier send was cancelled).
        """
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
        """Close the stream, in whatever state it is. Idempotent."""
        self._send_broken = True
        try:
            await self._stream.aclose()
        except (BrokenResourceError, ClosedResourceError, EndOfStream, OSError):
            return
