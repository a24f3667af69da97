from __future__ import annotations

import anyio
import pytest
from anyio import EndOfStream
from anyio.abc import ByteStream
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.errors import WireError
from psyche_core.wire.frames import HEADER_BYTES, FrameDecoder, FramedStream, frame


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Pipe(ByteStream):
    """One direction of bytes, handed over in the given pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = list(pieces)
        self.sent: list[bytes] = []
        self.closed = 0

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        if not self.pieces:
            raise EndOfStream
        piece = self.pieces.pop(0)
        assert len(piece) <= max_bytes
        return piece

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        self.sent.append(item)

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        self.closed += 1


@settings(deadline=None)
@given(payloads=st.lists(st.binary(min_size=1, max_size=40), max_size=6), data=st.data())
def test_any_cutting_of_the_stream_gives_the_same_frames(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frame(payload, limit=40) for payload in payloads)
    decoder = FrameDecoder(limit=40)
    got = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        decoder.feed(stream[at : at + size])
        at += size
        while (payload := decoder.next()) is not None:
            got.append(payload)

    assert got == payloads
    assert len(decoder._buffer) == 0


def test_header_is_big_endian() -> None:
    assert frame(b"x" * 258, limit=1000)[:HEADER_BYTES] == b"\x00\x00\x01\x02"


@pytest.mark.parametrize("length", [0, 11, 2**32 - 1])
def test_length_is_refused_before_the_body_arrives(length: int) -> None:
    decoder = FrameDecoder(limit=10)
    decoder.feed(length.to_bytes(4, "big"))
    with pytest.raises(WireError, match=rf"frame of {length} bytes was announced, expected 1 to 10"):
        decoder.next()


@pytest.mark.parametrize("payload", [b"", b"x" * 11])
def test_payload_outside_the_limit_is_not_sent(payload: bytes) -> None:
    with pytest.raises(WireError, match=r"1 to 10 bytes, got"):
        frame(payload, limit=10)


async def test_stream_receives_split_frames_and_ends() -> None:
    whole = frame(b"hello", limit=10) + frame(b"you", limit=10)
    stream = FramedStream(Pipe([whole[:2], whole[2:7], whole[7:]]), receive_limit=10, send_limit=10)
    assert await stream.receive() == b"hello"
    assert await stream.receive() == b"you"
    assert stream.bytes_received == len(whole)
    with pytest.raises(EndOfStream):
        await stream.receive()


async def test_raised_limit_holds_for_later_frames() -> None:
    big = frame(b"x" * 20, limit=100)
    stream = FramedStream(Pipe([big]), receive_limit=10, send_limit=10)
    stream.set_receive_limit(20)
    assert await stream.receive() == b"x" * 20


async def test_several_frames_are_one_write_and_close_is_idempotent() -> None:
    pipe = Pipe([])
    stream = FramedStream(pipe, receive_limit=10, send_limit=10)
    await stream.send(b"a", b"bc")
    assert pipe.sent == [b"\0\0\0\1a\0\0\0\2bc"]
    assert stream.bytes_sent == 11
    await stream.aclose()
    await stream.aclose()
    with pytest.raises(anyio.BrokenResourceError):
        await stream.send(b"a")


async def test_cancelled_send_breaks_further_sends() -> None:
    pipe = Pipe([])
    stream = FramedStream(pipe, receive_limit=10, send_limit=10)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await stream.send(b"a")
    with pytest.raises(anyio.BrokenResourceError):
        await stream.send(b"b")
    assert pipe.sent == []
