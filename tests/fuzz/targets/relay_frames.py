"""Frames of clients of a relay, and answers to its challenge: what is accepted is forwarded whole, and no longer than it came."""

from __future__ import annotations

from random import Random

from psyche_core.errors import WireError
from psyche_p2p_quic.relay.protocol import frames
from psyche_p2p_quic.relay.protocol.handshake import Challenge
from tests.fuzz.mutation import change_bytes

DOCUMENTED = (WireError,)
MAX_BYTES = 400
MEMORY = (8, 65_536)
_NONCE = bytes(range(16))
_ID = bytes.fromhex("8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c")
_SIGNATURE = bytes.fromhex(
    "4d5e2e27b1f48ba67554ffa68589791ddfec1529574c3f26e4356bc075cee0a3"
    "ddaedea5fb0b3de1359d135dce06aa7f192562e48df781df865c77f1d716f00d"
)
_ANSWER = b"\x01" + _ID + b"\x40" + _SIGNATURE
"""What the real client answered to the nonce."""


def seeds() -> list[bytes]:
    return [
        b"\x04" + _ID + b"\x00payload",
        b"\x05" + _ID + b"\x02\x04\xb0" + bytes(300),
        b"\x09pingpong",
        b"\x0apingpong",
        _ANSWER,
    ]


def mutate(data: bytes, random: Random) -> bytes:
    """A change behind the type."""
    return data[:1] + change_bytes(data[1:], random)


def TARGET(data: bytes) -> None:
    if data[:1] == b"\x01":
        assert Challenge(_NONCE).proven_id(data) == _ID, "nobody else's signature is known"
        assert data == _ANSWER
        return

    kind = frames.check_client_frame(data)
    if kind in {frames.PING, frames.PONG}:
        assert len(data) == 9
        return

    head, body = frames.forwarded(data, b"s" * 32)
    assert len(head) + len(body) == len(data)
    assert head == bytes((kind + 2,)) + b"s" * 32
    assert frames.receiver(data) + body == data[1:]
