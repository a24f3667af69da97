"""Patches of plain trees: never a bomb, never a change to the old tree. The input is the encoding of [old, patch]."""

from __future__ import annotations

from psyche_core.errors import WireError
from psyche_core.wire.codec import decode, encode
from psyche_core.wire.diff import diff, patched
from tests.fuzz.mutation import change_cbor as mutate

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError,)
MAX_BYTES = 1024
MEMORY = (2000, 65_536)  # holds two trees, and the difference between them for the assertion

_DEPTH = 64


def seeds() -> list[bytes]:
    pairs = [
        ({"a": 1, "b": [1, 2, 3], "c": {"d": b"x"}}, {"a": 1, "b": [1, 3, 4], "c": {"d": b"y", "e": None}}),
        (list(range(9)), [*range(3, 9), 1, 2]),
        ([{"height": h, "seen": []} for h in range(4)], [{"height": h, "seen": [b"w"]} for h in range(1, 5)]),
        ({"x": {"y": {"z": [[1], [2]]}}}, {"x": {"y": {"z": [[2], [1, 2.5]]}}}),
        (1, "x"),
    ]
    return [encode([old, diff(old, new)]) for old, new in pairs]


def TARGET(data: bytes) -> None:
    match decode(data, max_bytes=MAX_BYTES, max_depth=_DEPTH):
        case [old, patch]:
            before = encode(old)
            new = patched(old, patch)
            assert encode(old) == before
            assert len(encode(new)) <= len(before) + len(encode(patch)) + 8
            again = diff(old, new)
            assert encode(new) == (before if again is None else encode(patched(old, again)))
        case _:
            return
