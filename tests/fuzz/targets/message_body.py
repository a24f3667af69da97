"""The inside of an envelope whose signature is right, from a member who lies: typed, in range, in one form only."""

from __future__ import annotations

from psyche_core.errors import WireError
from psyche_core.wire.codec import decode, encode
from psyche_core.wire.messages import MAX_ENVELOPE_BYTES, VERSION, seal, unseal
from tests.fuzz.mutation import change_cbor as mutate
from tests.fuzz.targets.envelope import KEY, MESSAGES, RUN

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError,)
MAX_BYTES = 1024
MEMORY = (400, 65_536)  # the dearest: one share interval of two small numbers becomes a BatchId in a tuple


def seeds() -> list[bytes]:
    return [decode(seal(KEY, RUN, message), max_bytes=MAX_ENVELOPE_BYTES)[2] for message in MESSAGES]


def TARGET(data: bytes) -> None:
    envelope = encode([VERSION, KEY.public, data, KEY.sign("message", RUN, data)])
    origin, message = unseal(envelope, run=RUN)
    assert origin == KEY.public
    assert seal(KEY, RUN, message) == envelope
