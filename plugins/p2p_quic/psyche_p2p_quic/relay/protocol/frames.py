"""Frames of the iroh relay protocol, versions 1 and 2: converts bytes to values and back. No I/O.

One binary WebSocket message is one frame: a type byte, then at most `MAX_BODY_BYTES`. To forward a datagram, its type is replaced
and the receiver's id is replaced by the sender's; the rest is copied unread, because it is encrypted from end to end. The
handshake's frames are in `handshake`.
"""

from __future__ import annotations

import enum
import struct

from psyche_core.errors import WireError

V1, V2 = "iroh-relay-v1", "iroh-relay-v2"
"""Values of `Sec-WebSocket-Protocol`."""

VERSIONS = (V2, V1)
"""The known versions, best first."""

ID_BYTES = 32
MAX_BODY_BYTES = 65536
"""Most bytes after the type byte."""

MAX_FRAME_BYTES = 1 + MAX_BODY_BYTES
PING_BYTES = 8

DATAGRAM_OUT, BATCH_OUT, DATAGRAM_IN, BATCH_IN = 4, 5, 6, 7
"""From a client (out) and to a client (in). A batch is several datagrams of equal size; the last may be shorter."""

PEER_GONE, PING, PONG, PROBLEM, RESTARTING, STATUS = 8, 9, 10, 11, 12, 13

_SHORTEST_DATAGRAM = 1 + ID_BYTES + 1 + 1
_SHORTEST_BATCH = 1 + ID_BYTES + 1 + 2 + 1
_TO_CLIENT = {DATAGRAM_OUT: DATAGRAM_IN, BATCH_OUT: BATCH_IN}


class Health(enum.IntEnum):
    """A relay's reports to a client about its connection."""

    OK = 0
    SAME_ID = 1  # another connection with the same id gets the traffic
    RATE_LIMITED = 2


_PROBLEMS = {Health.OK: b"", Health.SAME_ID: b"same endpoint id connected", Health.RATE_LIMITED: b"rate limited"}


def check_client_frame(frame: bytes) -> int:
    """Return the type of a frame that a client may send after the handshake. Raises WireError.

    Accepted are DATAGRAM_OUT and BATCH_OUT with a payload, PING and PONG.
    """
    size = len(frame)
    kind = frame[0] if size else -1
    if kind == BATCH_OUT:
        if _SHORTEST_BATCH <= size <= MAX_FRAME_BYTES and (frame[34] or frame[35]):
            return kind
    elif kind == DATAGRAM_OUT:
        if _SHORTEST_DATAGRAM <= size <= MAX_FRAME_BYTES:
            return kind
    elif kind in {PING, PONG} and size == 1 + PING_BYTES:
        return kind

    message = f"got {described(frame)}, which a client must not send"
    raise WireError(message)


def described(frame: bytes) -> str:
    """Return what a frame is, for a sentence that refuses it."""
    return f"a frame of type {frame[0]} and {len(frame)} bytes" if frame else "an empty frame"


def receiver(datagram: bytes) -> bytes:
    """Return the id of the receiver of a checked DATAGRAM_OUT or BATCH_OUT."""
    return datagram[1 : 1 + ID_BYTES]


def forwarded(datagram: bytes, sender: bytes) -> tuple[bytes, memoryview]:
    """Return a checked DATAGRAM_OUT or BATCH_OUT as its receiver gets it, in two parts."""
    return bytes((_TO_CLIENT[datagram[0]],)) + sender, memoryview(datagram)[1 + ID_BYTES :]


def ping(data: bytes) -> bytes:
    """Return a ping frame with 8 bytes, which the other side returns."""
    return bytes((PING,)) + data


def pong(ping_frame: bytes) -> bytes:
    """Return the answer to a ping frame."""
    return bytes((PONG,)) + ping_frame[1:]


def peer_gone(peer: bytes) -> bytes:
    """Return the frame that informs a client that a peer from which it got datagrams is not connected any more."""
    return bytes((PEER_GONE,)) + peer


def health(state: Health, version: str) -> bytes:
    """Return the state of a client's connection, in the form of the client's version."""
    return bytes((PROBLEM,)) + _PROBLEMS[state] if version == V1 else bytes((STATUS, state))


def restarting(*, reconnect_in_ms: int, try_for_ms: int) -> bytes:
    """Return the frame that announces that the relay stops, when to reconnect, and how long to try. Today's clients ignore it."""
    return struct.pack(">BII", RESTARTING, reconnect_in_ms, try_for_ms)
