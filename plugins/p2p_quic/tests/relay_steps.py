"""A relay's router and its clients without sockets: for tests in virtual time."""

from __future__ import annotations

import itertools

from nacl.signing import SigningKey
from websockets.frames import Frame, Opcode

from plugins.p2p_quic.tests.relay_parts import answer
from psyche_p2p_quic.relay.access import Access, OpenAccess
from psyche_p2p_quic.relay.connection import Client, Phase
from psyche_p2p_quic.relay.limits import RelayLimits
from psyche_p2p_quic.relay.router import Router

KEYS = [SigningKey(bytes((number,)) * 32) for number in range(1, 5)]
ALICE, BOB = (bytes(key.verify_key) for key in KEYS[:2])
SMALL = RelayLimits(queue_packets=4, queue_bytes=4000, total_queue_bytes=6000, message_bytes=2000, clients=6)


def make_router(access: Access | None = None, limits: RelayLimits = SMALL) -> Router:
    numbers = itertools.count()
    return Router(access or OpenAccess(), limits=limits, nonce=lambda: next(numbers).to_bytes(16, "big"), jitter=lambda: 0.5)


def upgrade_request(version: str = "iroh-relay-v2", token: str = "") -> bytes:
    return (
        "GET /relay HTTP/1.1\r\nHost: relay\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {version}\r\n"
        f"{f'Authorization: Bearer {token}' if token else 'X-Nothing: x'}\r\n\r\n"
    ).encode()


def message(payload: bytes) -> memoryview:
    return memoryview(Frame(Opcode.BINARY, payload).serialize(mask=True))


def phase_of(client: Client) -> Phase:
    """Its phase now; mypy believes that it stays what it was compared with."""
    return client.phase


def taken(client: Client) -> list[bytes]:
    """What waits for a client: its WebSocket messages' payloads; a close frame's with an x before."""
    data = client.take(10**9)
    found = []
    while data:
        size, at = data[1], 2
        if size == 126:
            size, at = int.from_bytes(data[2:4], "big"), 4
        found.append((b"x" if data[0] == 0x88 else b"") + data[at : at + size])
        data = data[at + size :]
    return found


def greet(router: Router, key: SigningKey, now: float = 0.0, *, version: str = "iroh-relay-v2", token: str = "") -> Client:
    """A client that has answered the challenge."""
    client = Client(router, "192.0.2.1", now)
    client.receive(memoryview(upgrade_request(version, token)), now)
    response, _, rest = client.take(10**9).partition(b"\r\n\r\n")
    assert response.startswith(b"HTTP/1.1 101 "), response
    client.receive(message(answer(key, rest[2:])), now)
    return client


def batch(to: bytes, size: int = 100) -> memoryview:
    return message(b"\x05" + to + b"\x00\x04\xb0" + bytes(size))
