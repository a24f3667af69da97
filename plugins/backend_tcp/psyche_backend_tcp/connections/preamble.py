"""The first bytes of a connection, before TLS: a client's proof, and a challenge that a server may send instead of TLS.

A client that needs no proof begins with TLS directly, so nothing changes while places are not scarce. A server reads the first
bytes before it begins TLS, because the handshake is expensive, and then passes them on to TLS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anyio.abc import ByteStream

from psyche_backend_tcp.connections.puzzle import (
    CHALLENGE_BYTES,
    CHALLENGE_MAGIC,
    PROOF_BYTES,
    PROOF_MAGIC,
    Proof,
    decode_challenge,
    decode_proof,
)
from psyche_core.errors import WireError

_TLS_HANDSHAKE = 0x16


class Challenged(Exception):
    """The server requires a proof first. cookie: see `puzzle`."""

    def __init__(self, cookie: bytes) -> None:
        super().__init__("the server has few places left and asks for a proof")
        self.cookie = cookie


class _Wrapped(ByteStream):
    """A byte stream around another one."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """The attributes of the inner stream."""
        return self._stream.extra_attributes

    async def send(self, item: bytes) -> None:
        """Send through the inner stream."""
        await self._stream.send(item)

    async def send_eof(self) -> None:
        """End the sending direction of the inner stream."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the inner stream."""
        await self._stream.aclose()


class _Begun(_Wrapped):
    """A stream whose first bytes were already read and are returned again."""

    def __init__(self, stream: ByteStream, first: bytes) -> None:
        super().__init__(stream)
        self._first = first

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes."""
        if self._first:
            data, self._first = self._first[:max_bytes], self._first[max_bytes:]
            return data

        return await self._stream.receive(max_bytes)


class ChallengeStream(_Wrapped):
    """The client's stream for TLS. If its first bytes are a challenge, `receive` raises Challenged, or WireError."""

    def __init__(self, stream: ByteStream) -> None:
        super().__init__(stream)
        self._fresh = True

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes."""
        data = await self._stream.receive(max_bytes)
        if self._fresh and data[:1] == CHALLENGE_MAGIC[:1]:
            while len(data) < CHALLENGE_BYTES:
                data += await self._stream.receive(CHALLENGE_BYTES - len(data))
            raise Challenged(decode_challenge(data[:CHALLENGE_BYTES]))

        self._fresh = False
        return data


async def receive_opening(stream: ByteStream) -> tuple[Proof | None, ByteStream]:
    """Return the proof with which a client begins, if any, and the stream for TLS.

    Raises WireError when it begins with something else, and the errors of a lost connection.
    """
    data = await stream.receive()
    if data[0] == _TLS_HANDSHAKE:
        return None, _Begun(stream, data)

    if data[0] != PROOF_MAGIC[0]:
        message = f"a connection began with the byte {data[0]}, expected TLS"
        raise WireError(message)

    while len(data) < PROOF_BYTES:
        data += await stream.receive()
    return decode_proof(data[:PROOF_BYTES]), _Begun(stream, data[PROOF_BYTES:])
