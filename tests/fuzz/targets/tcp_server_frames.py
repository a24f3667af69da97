"""What a server sends: frames, the document with the coordinator's state, and patches of the document we hold."""

from __future__ import annotations

from psyche_backend_tcp.protocol import (
    Answer,
    Bye,
    Heartbeat,
    Patch,
    ServerMessage,
    Welcome,
    Whole,
    decode_server,
    document_digest,
    encode_server,
    make_document,
    read_document,
)
from psyche_core.errors import WireError
from psyche_core.testing.backend import small_state
from psyche_core.wire.diff import diff, patched
from tests.fuzz.mutation import change_cbor as mutate
from tests.fuzz.targets.coordinator_state import rich_state

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError,)
MAX_BYTES = 6000
MEMORY = (1000, 524_288)

_OLD = make_document(small_state(), {b"a" * 32: b"address"})
_NEW = make_document(rich_state(), {b"b" * 32: b"", b"c" * 32: b"x" * 40})


def seeds() -> list[bytes]:
    messages: list[ServerMessage] = [
        Heartbeat(),
        Answer(7, "Halted", "why"),
        Whole(document_digest(_OLD), _OLD),
        Whole(document_digest(_NEW), _NEW),
        Patch(document_digest(_OLD), document_digest(_NEW), diff(_OLD, _NEW)),
        Bye("Replaced", "why"),
        Welcome(10.0, b"s" * 64),
    ]
    return list(map(encode_server, messages))


def TARGET(data: bytes) -> None:
    match decode_server(data):
        case Whole(_, document):
            read_document(document)
        case Patch(_, _, patch):
            document = patched(_OLD, patch)
            document_digest(document)
            read_document(document)
        case Welcome(ping_seconds, _):
            assert ping_seconds > 0
        case _:
            return
