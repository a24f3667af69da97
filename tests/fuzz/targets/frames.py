"""Length-prefixed frames, fed in pieces: what comes out is what went in, and no more is kept than the limit allows."""

from __future__ import annotations

from psyche_core.errors import WireError
from psyche_core.wire.frames import HEADER_BYTES, FrameDecoder, frame

DOCUMENTED = (WireError,)
MAX_BYTES = 1024
MEMORY = (16, 65_536)

_LIMIT = 600


def seeds() -> list[bytes]:
    """The first byte is the size of the pieces."""
    frames = [frame(payload, limit=_LIMIT) for payload in (b"x", b"hello" * 20, bytes(_LIMIT))]
    return [bytes((size,)) + b"".join(frames) for size in (1, 7, 255)] + [b"\x10" + frames[1][:50]]


def TARGET(data: bytes) -> None:
    size, stream = max(1, data[0] if data else 1), data[1:]
    decoder = FrameDecoder(limit=_LIMIT)
    out = b""
    for at in range(0, len(stream), size):
        decoder.feed(stream[at : at + size])
        while (payload := decoder.next()) is not None:
            out += frame(payload, limit=_LIMIT)
        assert len(decoder._buffer) < HEADER_BYTES + _LIMIT + size

    assert out + stream[len(out) :] == stream
    assert len(decoder._buffer) == len(stream) - len(out)
