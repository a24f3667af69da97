"""A piece of a model from a member: the bytes its manifest names and finite, or ModelError; nothing is replaced before.

The manifest names whatever the piece is, so that what is behind the hash is reached; the first byte spoils it.
"""

from __future__ import annotations

import hashlib
from random import Random

import numpy as np
import torch

from psyche_core.errors import ModelError
from psyche_core.p2p.manifest import Manifest, cut
from psyche_core.training.snapshot import assemble, differing, read_piece, table_of
from tests.fuzz.mutation import change_bytes

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (ModelError,)
MAX_BYTES = 96
MEMORY = (100, 65_536)

_MASTERS = {"bias": torch.zeros(3), "weight": torch.arange(20.0).view(4, 5)}
_TABLE = table_of(_MASTERS)
_PIECES = cut(_TABLE)
_OWN = [read_piece(_MASTERS, piece) for piece in _PIECES]
_WANTED = 1
_SPECIAL = (b"\0\0\x80\x7f", b"\0\0\x80\xff", b"\1\0\xc0\x7f", b"\1\0\0\0", b"\0\0\0\x80", b"\xff\xff\x7f\x7f")
"""Infinities, a NaN, the smallest number, minus zero, the largest number."""


def seeds() -> list[bytes]:
    own = _OWN[_WANTED]
    return [b"\0" + own, b"\0" + own[:-4] + b"\0\0\x80\x7f", b"\1" + own, b"\0" + b"\0\0\0\x80" * 20, b"\0"]


def mutate(data: bytes, random: Random) -> bytes:
    """Other values, at times those that arithmetic stumbles over, of the right length."""
    values = bytearray(data[1:].ljust(len(_OWN[_WANTED]), b"\0")[: len(_OWN[_WANTED])])
    place = 4 * random.randrange(len(values) // 4)
    special = (
        b"\0\0\x80\x7f",
        b"\0\0\x80\xff",
        b"\1\0\xc0\x7f",
        b"\1\0\0\0",
        b"\0\0\0\x80",
        b"\xff\xff\x7f\x7f",
        random.randbytes(4),
    )
    values[place : place + 4] = random.choice(special)
    return data[:1] + (bytes(values) if random.random() < 0.9 else change_bytes(bytes(values), random))


def TARGET(data: bytes) -> None:
    named = [hashlib.sha256(piece).digest() for piece in _OWN]
    named[_WANTED] = hashlib.sha256(data[1:] if data[:1] == b"\0" else b"another").digest()
    manifest = Manifest("run", 1, _TABLE, tuple(named))
    before = [master.clone() for master in _MASTERS.values()]
    try:
        built = assemble(_MASTERS, manifest, {_WANTED: data[1:]})
    finally:
        assert all(torch.equal(master, old) for master, old in zip(_MASTERS.values(), before, strict=True))

    assert not differing(built, manifest)
    assert all(bool(np.isfinite(master.numpy()).all()) for master in built.values())
