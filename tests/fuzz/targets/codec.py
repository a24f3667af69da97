"""Canonical CBOR: what is accepted encodes to the same bytes."""

from __future__ import annotations

from typing import Any

from psyche_core.errors import WireError
from psyche_core.wire.codec import decode, encode
from tests.fuzz.mutation import change_cbor as mutate

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError,)
MAX_BYTES = 400
MEMORY = (160, 65_536)  # the dearest: maps of one entry, 232 bytes of memory for 2 of input


def seeds() -> list[bytes]:
    values: list[Any] = [
        None,
        [0, 23, 24, 255, 256, 2**32, 2**64 - 1, -1, -(2**64)],
        [0.0, -0.0, 1.5, 1e300, 1.1, 5e-324],
        ["", "a", "é\U0001f980", b"", b"x" * 300],
        {"a": 1, "b": [True, False, None], "": {}, 3: {2: {1: []}}},
        [[[[[[[[]]]]]]]],
    ]
    return [encode(value) for value in values]


def TARGET(data: bytes) -> None:
    assert encode(decode(data, max_bytes=MAX_BYTES)) == data
