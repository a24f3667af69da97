"""Frames of a connection's control stream.

Each frame is canonical CBOR [kind, …] after a 4-byte length. The type and range of every field are checked before a value is
built. `control_protocol` decides which frame answers which.
"""

from __future__ import annotations

from dataclasses import dataclass

from psyche_core.errors import WireError
from psyche_core.interfaces.transport import MAX_MESSAGE_BYTES
from psyche_core.p2p.message_log import PREFIX_BYTES
from psyche_core.wire import codec
from psyche_p2p_quic.addresses.peer_address import INSTANCE_BYTES

VERSION = 3
MAX_HELLO_BYTES = 512
MAX_INVENTORY = 8192
"""Most message ids in one Inventory."""

MAX_IDS = 512
"""Most ids in one IHave, IWant or Have."""

_HELLO, _MESSAGE, _INVENTORY, _PING, _PONG, _IHAVE, _IWANT, _HAVE = range(8)
_MAX_NUMBER = 2**63
_HAVE_BEGINS = bytes((0x82, _HAVE))
"""A list of two items, and the kind, in canonical CBOR."""

HAVE_COST, HAVE_BYTES = 16, 64
"""A Have counts as so many frames, and as one more for each so many bytes."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of both sides. instance: random bytes, drawn once per endpoint; they distinguish a restart from a
    reconnect.
    """

    run_id: str
    instance: bytes


@dataclass(frozen=True, slots=True)
class Message:
    """A message that the sender wrote or forwards (relayed)."""

    tag: int
    message: bytes
    relayed: bool


@dataclass(frozen=True, slots=True)
class Inventory:
    """Shortened ids of all live messages that the sender has."""

    prefixes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class IHave:
    """Shortened ids of messages that the sender has just received and can forward (gossipsub's IHAVE)."""

    prefixes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class IWant:
    """Shortened ids of messages that the sender does not have and the receiver has announced (gossipsub's IWANT)."""

    prefixes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Have:
    """First bytes of the hashes of results that the sender has."""

    prefixes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Ping:
    """A heartbeat. digest: over the sender's live messages, None when it has none."""

    number: int
    digest: bytes | None


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping."""

    number: int


Frame = Hello | Message | Inventory | Ping | Pong | IHave | IWant | Have


def encode(frame: Frame) -> bytes:
    """Return the frame's bytes, without the length."""
    match frame:
        case Hello(run_id, instance):
            return codec.encode([_HELLO, VERSION, run_id, instance])
        case Message(tag, message, relayed):
            return codec.encode([_MESSAGE, tag, message, relayed])
        case Inventory(prefixes):
            return codec.encode([_INVENTORY, b"".join(prefixes)])
        case Ping(number, digest):
            return codec.encode([_PING, number, digest])
        case Pong(number):
            return codec.encode([_PONG, number])
        case IHave(prefixes):
            return codec.encode([_IHAVE, b"".join(prefixes)])
        case IWant(prefixes):
            return codec.encode([_IWANT, b"".join(prefixes)])
        case Have(prefixes):
            return codec.encode([_HAVE, b"".join(prefixes)])


def decode(data: bytes, *, max_bytes: int) -> Frame:
    """Read a frame. Raises only WireError."""
    fields = codec.decode(data, max_bytes=max_bytes, max_depth=1, max_items=8)
    if isinstance(fields, list) and any(isinstance(field, bool | float) for field in fields[:2]):
        message = "a control frame begins with integers"  # the patterns below would match True and 1.0 too
        raise WireError(message)

    match fields:
        case [0, int() as version, *_] if version != VERSION:
            message = f"a hello of transport version {version} came to a program of version {VERSION}; update the older one"
            raise WireError(message)
        case [0, int(), str() as run_id, bytes() as instance] if len(instance) == INSTANCE_BYTES:
            return Hello(run_id, instance)
        case [1, int() as tag, bytes() as body, bool() as relayed] if _counts(tag) and len(body) <= MAX_MESSAGE_BYTES:
            return Message(tag, body, relayed)
        case [2, bytes() as ids] if _lists(ids, MAX_INVENTORY):
            return Inventory(_split(ids))
        case [3, int() as number, (None | bytes()) as digest] if _counts(number) and (digest is None or len(digest) == 32):
            return Ping(number, digest)
        case [4, int() as number] if _counts(number):
            return Pong(number)
        case [5, bytes() as ids] if ids and _lists(ids, MAX_IDS):
            return IHave(_split(ids))
        case [6, bytes() as ids] if ids and _lists(ids, MAX_IDS):
            return IWant(_split(ids))
        case [7, bytes() as ids] if ids and _lists(ids, MAX_IDS):
            return Have(_split(ids))
        case _:
            message = "a control frame has an unknown kind, or fields of the wrong type or size"
            raise WireError(message)


def cost(data: bytes) -> int:
    """Return for how many frames an encoded frame counts where their number a second is limited.

    A Have counts for more. A member has a few hundred new results in a round at most, and sends more ids in a frame only when it
    connects; each frame may make the receiver ask for something.
    """
    return HAVE_COST + len(data) // HAVE_BYTES if data[:2] == _HAVE_BEGINS else 1


def _counts(number: int) -> bool:
    return type(number) is int and 0 <= number < _MAX_NUMBER


def _lists(ids: bytes, most: int) -> bool:
    return len(ids) % PREFIX_BYTES == 0 and len(ids) <= most * PREFIX_BYTES


def _split(ids: bytes) -> tuple[bytes, ...]:
    return tuple(ids[at : at + PREFIX_BYTES] for at in range(0, len(ids), PREFIX_BYTES))
