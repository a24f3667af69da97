"""A server's saved state: used as it was written, or refused with a sentence. The first byte says which hash stands before it."""

from __future__ import annotations

import hashlib
from random import Random

from psyche_backend_tcp.protocol import make_document, read_document
from psyche_backend_tcp.server.state_store import StateStore
from psyche_core.config.run_config import to_plain
from psyche_core.errors import UserError
from psyche_core.wire.codec import decode, encode
from tests.fuzz.files import scratch_folder
from tests.fuzz.mutation import change_bytes, change_cbor
from tests.fuzz.targets.coordinator_state import rich_state

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (UserError,)
MAX_BYTES = 6000
MEMORY = (1000, 6_000_000)  # room for the longest file is taken before it is read

_STORE = StateStore(scratch_folder(), "run")
_TRUE, _GIVEN = b"\1", b"\0"


def seeds() -> list[bytes]:
    state = rich_state()
    document = encode(make_document(state, {b"a" * 32: b"address"}))
    bodies = [encode([document, None]), encode([document, to_plain(state.config)])]
    return [*(_TRUE + body for body in bodies), _GIVEN + b"psyche state 2\n", _GIVEN]


def mutate(data: bytes, random: Random) -> bytes:
    """A change inside the document, or of what surrounds it."""
    try:
        document, opening = decode(data[1:], max_bytes=MAX_BYTES)
        if isinstance(document, bytes) and random.random() < 0.7:
            return _TRUE + encode([change_cbor(document, random), opening])
    except Exception:  # whatever it was, it was no saved state any more
        return change_bytes(data, random)

    return _TRUE + change_cbor(data[1:], random)


def TARGET(data: bytes) -> None:
    body = data[1:]
    content = b"psyche state 1\n" + hashlib.sha256(body).digest() + body if data[:1] == _TRUE else body
    _STORE.path.write_bytes(content)
    saved = _STORE.load()
    assert saved is not None
    again = encode(make_document(saved.update.state, saved.update.addresses))
    assert read_document(decode(again, max_bytes=4 * MAX_BYTES, max_depth=64)) == saved.update
