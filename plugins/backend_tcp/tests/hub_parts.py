"""A hub without sockets, three keys, and frames to it."""

from __future__ import annotations

import itertools

from psyche_backend_tcp.limits import Limits
from psyche_backend_tcp.protocol import (
    JoinRequest,
    ServerMessage,
    decode_server,
    encode_client,
)
from psyche_backend_tcp.server.hosted_state import ClockTime
from psyche_backend_tcp.server.hub import Hub
from psyche_core.testing.backend import START_TIME, small_state
from psyche_core.types import NodeIdentity
from psyche_core.wire.messages import sign_join
from psyche_core.wire.signing import SecretKey

KEYS = {key.public: key for key in (SecretKey(bytes([number]) * 32) for number in (1, 2, 3))}
ALICE, BOB, CAROL = (NodeIdentity(public, public) for public in KEYS)
LIMITS = Limits(reconnect_seconds=5, ping_seconds=10, silence_seconds=30)


def at(seconds: float) -> ClockTime:
    return ClockTime(seconds, START_TIME + int(seconds))


def make_hub(*, limits: Limits = LIMITS, withdraw: bool = True, clients: int = 2) -> Hub:
    numbers = itertools.count(1)
    return Hub(small_state(clients=clients), limits, draw_seed=lambda: next(numbers), withdraw_on_disconnect=withdraw)


def save(hub: Hub) -> None:
    """What the server's shell does after each call: put changes on disk, here at once."""
    pending_save = hub.take_pending_save()
    if pending_save is not None:
        hub.saved(pending_save)


def outgoing(hub: Hub, number: int) -> list[bytes]:
    save(hub)
    return hub.outgoing(number)


def messages(hub: Hub, number: int) -> list[ServerMessage]:
    return [decode_server(frame) for frame in outgoing(hub, number)]


def join(hub: Hub, number: int, moment: ClockTime, *, request: int = 7, address: bytes = b"here") -> None:
    hub.receive(number, join_frame(hub, number, request=request, address=address), moment)


def join_frame(hub: Hub, number: int, *, request: int = 7, address: bytes = b"here", identity: NodeIdentity = ALICE) -> bytes:
    connection = hub._connections.get(number)
    identity = identity if connection is None else connection.identity
    proof = sign_join(KEYS[identity.p2p], hub.state.instance, identity.signer)
    return encode_client(JoinRequest(request, address, proof))
