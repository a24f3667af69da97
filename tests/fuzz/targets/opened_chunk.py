"""Opened chunks of a delta: what is accepted belongs to no root but its own."""

from __future__ import annotations

import numpy as np

from psyche_core.errors import WireError
from psyche_core.verification.merkle import MAX_PROOF_BYTES, MerkleTree
from psyche_core.verification.opening import OpenedChunk, decode_chunk, delta_leaf

DOCUMENTED = (WireError,)
_SIZE, _TOPK, _CHUNKS = 16, 4, 5
MAX_BYTES = 9 + 4 * _SIZE + 8 * _TOPK + MAX_PROOF_BYTES
MEMORY = (32, 65_536)

_DELTA = np.random.default_rng(0).normal(size=(_CHUNKS, _SIZE)).astype(np.float32)
_POSITIONS = np.array([1, 3, 8, 15])
_VALUES = np.array([0.5, -1.0, 2.0, -0.25], dtype=np.float32)
_TREE = MerkleTree([delta_leaf(row, _POSITIONS, _VALUES) for row in _DELTA])
_ENCODED = [OpenedChunk(n, _DELTA[n], _POSITIONS, _VALUES, _TREE.proof(n)).encode() for n in range(_CHUNKS)]


def seeds() -> list[bytes]:
    return _ENCODED


def TARGET(data: bytes) -> None:
    chunk = decode_chunk(data, size=_SIZE, topk=_TOPK)
    assert chunk.taken.shape == (_SIZE,)
    assert not chunk.belongs(_TREE.root, chunks=_CHUNKS) or data in _ENCODED
