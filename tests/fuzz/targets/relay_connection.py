"""A whole connection to a relay: whatever a client sends, in whatever pieces, nothing is raised and the accounts balance.

An input is cut where its bytes say, and reaches a connection before its request, before its login, or after it. The first byte
says which.
"""

from __future__ import annotations

from random import Random

from nacl.signing import SigningKey

from psyche_core.errors import WireError
from psyche_p2p_quic.relay.access import OpenAccess
from psyche_p2p_quic.relay.connection import Client, Phase
from psyche_p2p_quic.relay.limits import RelayLimits
from psyche_p2p_quic.relay.protocol.handshake import Challenge
from psyche_p2p_quic.relay.router import Router
from tests.fuzz.mutation import change_bytes

DOCUMENTED = (WireError,)
MAX_BYTES = 600
MEMORY = (200, 262_144)
_LIMITS = RelayLimits(queue_packets=8, queue_bytes=4096, total_queue_bytes=8192, message_bytes=2048)
_NONCE = bytes(16)
_KEY = SigningKey(b"\x01" * 32)
_ID = bytes(_KEY.verify_key)
_MASK = b"mask"
_REQUEST = (
    b"GET /relay HTTP/1.1\r\nHost: relay\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: iroh-relay-v2\r\n\r\n"
)
_ANSWER = b"\x01" + _ID + b"\x40" + _KEY.sign(Challenge(_NONCE).message).signature


def _message(payload: bytes, first: int = 0x82) -> bytes:
    size = len(payload)
    header = bytes((first, 0x80 | size)) if size < 126 else bytes((first, 0xFE)) + size.to_bytes(2, "big")
    return header + _MASK + bytes(byte ^ _MASK[place % 4] for place, byte in enumerate(payload))


_DATAGRAM = _message(b"\x05" + _ID + b"\x00\x04\xb0" + bytes(150))


def seeds() -> list[bytes]:
    return [
        b"\x00" + _REQUEST + _message(_ANSWER) + _DATAGRAM,
        b"\x01" + _message(_ANSWER) + _DATAGRAM,
        b"\x02" + _DATAGRAM * 3,
        b"\x02" + _message(b"\x09pingpong") + _message(b"still there?", 0x89) + _message(b"\x04" + _ID, 0x02),
        b"\x02" + _message(b"\x03\xe8bye", 0x88),
    ]


def mutate(data: bytes, random: Random) -> bytes:
    """Another forwarded frame or control frame somewhere, its payload changed behind the mask."""
    payload = change_bytes(b"\x05" + _ID + b"\x00\x04\xb0" + bytes(20), random)[:300]
    place = random.randint(1, len(data)) if data else 0
    return data[:place] + _message(payload, random.choice((0x82, 0x82, 0x02, 0x80, 0x89, 0x8A, 0x88))) + data[place:]


def TARGET(data: bytes) -> None:
    router = Router(OpenAccess(), limits=_LIMITS, nonce=lambda: _NONCE, jitter=lambda: 0.0)
    client = Client(router, "192.0.2.1", 0.0)
    stage = data[0] % 3 if data else 0
    stream = b"".join((b"", _REQUEST, _REQUEST + _message(_ANSWER))[stage : stage + 1]) + data[1:]
    step = 1 + (data[-1] if data else 0)
    now = 0.0
    for start in range(0, len(stream), step):
        client.receive(memoryview(stream)[start : start + step], now)
        assert router.queued_bytes == client.out_bytes
        assert client.out_bytes <= _LIMITS.queue_bytes + 70 * 250
        assert router.client_count == (client.phase is Phase.CONNECTED)
        now += 0.01
    refused = client.phase is Phase.CLOSING and client.ending not in {"answered", "it closed the connection"}
    sent = client.take(2**20)
    assert router.queued_bytes == client.out_bytes == 0
    assert client.phase in {Phase.REQUEST, Phase.CLOSING} or sent
    client.lost()
    assert router.client_count == router.id_count == 0
    if refused:
        raise WireError(client.ending)
