"""Signed envelopes from strangers: only bytes that the key's owner sealed are accepted, and in one form only."""

from __future__ import annotations

from psyche_core.errors import WireError
from psyche_core.types import BatchId
from psyche_core.wire.messages import (
    Finished,
    Message,
    ModelDigest,
    ModelOffer,
    ModelWanted,
    Opening,
    Result,
    seal,
    unseal,
)
from psyche_core.wire.signing import SecretKey
from tests.fuzz.mutation import change_cbor as mutate

__all__ = ["DOCUMENTED", "KEY", "MAX_BYTES", "MEMORY", "MESSAGES", "RUN", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError,)
MAX_BYTES = 1024
MEMORY = (160, 65_536)

RUN = b"f" * 32
KEY = SecretKey(b"k" * 32)
MESSAGES: tuple[Message, ...] = (
    Result(1, 2, 3, 2**64 - 1, (BatchId(0, 7), BatchId(100, 100)), b"h" * 32, 2**30, b"c" * 32, b"s" * 64),
    Result(0, 0, 1, 0, tuple(BatchId(2 * n, 2 * n) for n in range(40)), b"h" * 32, 0, b"c" * 32, b"s" * 64),
    Finished(0, 2**32 - 1, 0),
    ModelDigest(7, True, b"d" * 32, 2**64 - 1),
    ModelWanted(3, 0, 5),
    ModelOffer(3, 9, 2**64 - 1, b"m" * 32, 12_345),
    Opening(3, 9, 2**64 - 1, 6, 255, b"p" * 32, 65_536),
    Result(1, 2, 3, 5, (BatchId(0, 7),), b"h" * 32, 2**30, b"c" * 32, b"s" * 64, b"r" * 64),
)
_SEALED = {seal(KEY, RUN, message): message for message in MESSAGES}


def seeds() -> list[bytes]:
    return list(_SEALED)


def TARGET(data: bytes) -> None:
    origin, message = unseal(data, run=RUN)
    assert origin == KEY.public, "nobody else signed anything"
    assert _SEALED.get(data) == message, "an envelope that was never sealed is accepted"
