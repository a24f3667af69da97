"""Messages between a logged-in client and the coordinator server: canonical CBOR lists; the first element is the kind.

    client -> server                          server -> client
    [0]                 pong                  [0]                            ping
    [1, id, address, proof]  join             [1, id, code, sentence]        answer; code "" means done
    [2, id, command]    command               [2, hash, document]            whole document
    [3]                 request the whole     [3, base, hash, patch]         changes since the document with the hash `base`
    [4, generation, epoch, step]              [4, code, sentence]            bye, the connection is closed
                        knew a later state
                                              [5, ping seconds, signature]   welcome, after the login

The document is {"state": plain state, "addresses": [[signer, address], ...]} sorted by signer, with "relays": [URL, ...] if the
server offers relays beside those of the run's configuration; hash is the SHA-256 of its encoding. Documents are identified by
hash instead of a number, so that an identifier stays valid after a restart of the server. Commands carry no sender: the server
fills in the key that logged in (`psyche_core.interfaces.command_codec`).
Wrong types, lengths and ranges raise WireError before a value is built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psyche_backend_tcp.limits import CLIENT_FRAME, MAX_ADDRESS_BYTES, SERVER_FRAME
from psyche_core.config.schema import MAX_RELAY_BYTES, MAX_RELAYS
from psyche_core.coordinator.serialization import from_plain, to_plain
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import PsycheError, WireError
from psyche_core.interfaces.backend import StateUpdate
from psyche_core.wire.codec import decode, encode

VERSION = 4
MAX_PATCH_DEPTH = 64
"""Largest nesting of a server frame: a patch has up to three nested lists for each level of the document."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A ping of the server, or a client's pong."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Join with this transport address. number: chosen by the client, repeated in the answer. proof: see commands.Join."""

    number: int
    address: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command. number: chosen by the client. command: still encoded, see `psyche_core.interfaces.command_codec`."""

    number: int
    command: list[Any]


@dataclass(frozen=True, slots=True)
class WholeRequest:
    """The client cannot apply a patch and requests the whole document."""


@dataclass(frozen=True, slots=True, order=True)
class LaterState:
    """A message of a client that knew a later state than the newest one it received: the server was restored from an older one.

    Also used as the position of a state: of two states of a run, the later one compares as greater. epoch: number of ended
    epochs. step: the next to train.
    """

    generation: int
    epoch: int
    step: int

    @classmethod
    def of(cls, state: CoordinatorState) -> LaterState:
        """Return the position of a state."""
        return cls(state.generation, state.progress.epoch, state.progress.step)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request. code: empty on success, else the coordinator's error name or a server code."""

    number: int
    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Whole:
    """The whole document. digest: its hash, 32 bytes."""

    digest: bytes
    document: Any


@dataclass(frozen=True, slots=True)
class Patch:
    """The changes from the document with the hash `base` to the one with the hash `digest`."""

    base: bytes
    digest: bytes
    patch: Any


@dataclass(frozen=True, slots=True)
class Bye:
    """The last frame before the server closes the connection."""

    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The login was accepted. ping_seconds: the server sends something at least this often. signature: see `login`."""

    ping_seconds: float
    signature: bytes


ClientMessage = Heartbeat | JoinRequest | CommandRequest | WholeRequest | LaterState
ServerMessage = Heartbeat | Answer | Whole | Patch | Bye | Welcome


def encode_client(message: ClientMessage) -> bytes:
    """Return a client's message as a frame."""
    match message:
        case Heartbeat():
            return encode([0])
        case JoinRequest(number, address, proof):
            return encode([1, number, address, proof])
        case CommandRequest(number, command):
            return encode([2, number, command])
        case WholeRequest():
            return encode([3])
        case LaterState(generation, epoch, step):
            return encode([4, generation, epoch, step])


def decode_client(payload: bytes) -> ClientMessage:
    """Read a frame from a client. Raises WireError."""
    match decode(payload, max_bytes=CLIENT_FRAME):
        case [0]:
            return Heartbeat()
        case [1, int() as number, bytes() as address, bytes() as proof] if _is_u64(number) and len(proof) == 64:
            return JoinRequest(number, address, proof)
        case [2, int() as number, list() as command] if _is_u64(number):
            return CommandRequest(number, command)
        case [3]:
            return WholeRequest()
        case [4, int() as generation, int() as epoch, int() as step] if all(map(_is_u32, (generation, epoch, step))):
            return LaterState(generation, epoch, step)
        case _:
            message = "not a message of a client"
            raise WireError(message)


def encode_server(message: ServerMessage) -> bytes:
    """Return a server's message as a frame."""
    match message:
        case Heartbeat():
            return encode([0])
        case Answer(number, code, sentence):
            return encode([1, number, code, sentence])
        case Whole(digest, document):
            return encode([2, digest, document])
        case Patch(base, digest, patch):
            return encode([3, base, digest, patch])
        case Bye(code, sentence):
            return encode([4, code, sentence])
        case Welcome(ping_seconds, signature):
            return encode([5, float(ping_seconds), signature])


def decode_server(payload: bytes) -> ServerMessage:
    """Read a frame from the server. Raises WireError."""
    match decode(payload, max_bytes=SERVER_FRAME, max_depth=MAX_PATCH_DEPTH):
        case [0]:
            return Heartbeat()
        case [1, int() as number, str() as code, str() as sentence]:
            return Answer(number, code, sentence)
        case [2, bytes() as digest, dict() as document]:
            return Whole(digest, document)
        case [3, bytes() as base, bytes() as digest, list() as patch]:
            return Patch(base, digest, patch)
        case [4, str() as code, str() as sentence]:
            return Bye(code, sentence)
        case [5, float() as ping_seconds, bytes() as signature] if ping_seconds > 0:
            return Welcome(ping_seconds, signature)
        case _:
            message = "not a message of a server"
            raise WireError(message)


# ---------------------------------------------------------------- the document


def make_document(state: CoordinatorState, addresses: Mapping[bytes, bytes], relays: Sequence[str] = ()) -> dict[str, Any]:
    """Return the plain tree of which all clients keep a copy. relays: URLs that the server itself offers."""
    offered = {"relays": list(relays)} if relays else {}
    return {"state": to_plain(state), "addresses": [[signer, addresses[signer]] for signer in sorted(addresses)], **offered}


def document_digest(document: Any) -> bytes:
    """Return the SHA-256 of the document's encoding."""
    return hashlib.sha256(encode(document)).digest()


def read_document(document: Any) -> StateUpdate:
    """Return the state and address book in a document. Raises WireError."""
    match document:
        case {"state": plain, "addresses": list() as pairs, **others}:
            relays = _relays(others.get("relays", []))
            addresses = {}
            for pair in pairs:
                match pair:
                    case [bytes() as signer, bytes() as address] if len(signer) == 32 and len(address) <= MAX_ADDRESS_BYTES:
                        addresses[signer] = address
                    case _:
                        message = "the address book is malformed"
                        raise WireError(message)
            try:
                return StateUpdate(from_plain(plain), addresses, relays)
            except (PsycheError, ValueError, TypeError, KeyError, IndexError) as error:
                message = f"the server's state cannot be read: {error}; client and server are probably of different releases"
                raise WireError(message) from error
        case _:
            message = "the server's document has no state"
            raise WireError(message)


def _relays(plain: Any) -> tuple[str, ...]:
    if (
        isinstance(plain, list)
        and len(plain) <= MAX_RELAYS
        and all(isinstance(url, str) and len(url.encode(errors="replace")) <= MAX_RELAY_BYTES for url in plain)
    ):
        return tuple(plain)

    message = f"the server's relays are not a list of at most {MAX_RELAYS} URLs"
    raise WireError(message)


def _is_u64(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**64


def _is_u32(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**32
