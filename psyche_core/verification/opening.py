"""What is opened of a committed delta or gradient: chunks with their proofs, and all signs. Bytes of strangers, checked first.

A receiver knows its own table, so it knows how long everything must be before it looks at it. An opened chunk on the wire is

    version u8 = 1 · number u32 · taken u32 · delta float32 [size] · positions u32 [taken] · values float32 [taken] · proof

little-endian; `size` is the receiver's own, and `taken` at most its top-k. Positions are ascending and below `size`: a chunk has
one encoding. An opened gradient has no coefficients (taken = 0) and other hashes: no delta is a gradient.

Of an optimizer with a memory of earlier gradients, that is committed to and opened, too. Then version is 2, `memory float32
[size] · count u32` follows delta, and the half of a leaf that is opened is H("psyche/delta-memory/1" · that half · memory ·
count).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_core.errors import WireError
from psyche_core.verification.merkle import (
    MAX_PROOF_BYTES,
    MerkleTree,
    Proof,
    decode_proof,
    gradient_leaf,
    leaf_hash,
    opened_hash,
    signs_hash,
)

VERSION = 1
MEMORY_VERSION = 2
_HEADER = struct.Struct("<BII")
_COUNT = struct.Struct("<I")

Chunk = NDArray[np.float32]


def sign_bits(chunk: NDArray[np.floating[Any]]) -> bytes:
    """One bit for each element, 1 for negative ones, lowest bit first; then one for each, 1 for zeros. chunk: [size].

    Zeros are bound, too: where delta is zero a trainer did not look ahead, and who may say otherwise chooses its weights.
    """
    return b"".join(np.packbits(bits, bitorder="little").tobytes() for bits in (chunk < 0, chunk == 0))


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """What an optimizer remembers of earlier gradients in a chunk.

    values: float32 [size], at least 0. count: number of these gradients, u32.
    """

    values: Chunk
    count: int


def delta_leaf(delta: Chunk, positions: NDArray[np.integer[Any]], values: Chunk, memory: Memory | None = None) -> bytes:
    """The leaf of a chunk. delta: float32 [size]. positions, values: [taken], coefficients taken off; zeros are left out."""
    return leaf_hash(signs_hash(sign_bits(delta)), opened_half(delta, positions, values, memory))


def opened_half(delta: Chunk, positions: NDArray[np.integer[Any]], values: Chunk, memory: Memory | None = None) -> bytes:
    """The half of a leaf that a trainer shows of every chunk together with its signs, 32 bytes."""
    there = np.flatnonzero(values)
    order = there[np.argsort(positions[there], kind="stable")]
    half = opened_hash(_floats(delta), positions[order].astype("<u4").tobytes(), _floats(values[order]))
    if memory is None:
        return half

    return hashlib.sha256(b"psyche/delta-memory/1" + half + _memory_bytes(memory)).digest()


@dataclass(frozen=True, slots=True, eq=False)
class OpenedChunk:
    """A chunk as it is opened. number: of the chunk. delta: float32 [size]. positions: int64 [taken]; values: float32 [taken].

    memory: of an optimizer that has one.
    """

    number: int
    delta: Chunk
    positions: NDArray[np.int64]
    values: Chunk
    proof: Proof
    memory: Memory | None = None

    @property
    def taken(self) -> Chunk:
        """The coefficients taken off, at their positions, zero elsewhere: float32 [size]."""
        dense = np.zeros_like(self.delta)
        dense[self.positions] = self.values
        return dense

    def belongs(self, root: bytes, *, chunks: int) -> bool:
        """Whether a root over so many chunks of a delta has this one in its place."""
        leaf = delta_leaf(self.delta, self.positions, self.values, self.memory)
        return self.proof.index == self.number and self.proof.proves(leaf, root, leaves=chunks)

    def is_gradient_of(self, root: bytes, *, chunks: int) -> bool:
        """The same for a root over a gradient's chunks."""
        leaf = gradient_leaf(_floats(self.delta))
        return not self.positions.size and self.proof.index == self.number and self.proof.proves(leaf, root, leaves=chunks)

    def encode(self) -> bytes:
        """The bytes on the wire."""
        version = VERSION if self.memory is None else MEMORY_VERSION
        header = _HEADER.pack(version, self.number, self.positions.size)
        memory = b"" if self.memory is None else _memory_bytes(self.memory)
        positions = self.positions.astype("<u4").tobytes()
        return b"".join((header, _floats(self.delta), memory, positions, _floats(self.values), self.proof.encode()))


def decode_chunk(data: bytes, *, size: int, topk: int, memory: bool = False) -> OpenedChunk:
    """Decode a chunk of our table. size: its elements. topk: most coefficients taken off it. memory: whether it has one.

    Raises only WireError.
    """
    end = _HEADER.size + 4 * size + (4 * size + _COUNT.size if memory else 0)
    if not end <= len(data) <= end + 8 * topk + MAX_PROOF_BYTES:
        message = f"an opened chunk of {size} elements cannot have {len(data)} bytes"
        raise WireError(message)

    expected = MEMORY_VERSION if memory else VERSION
    version, number, taken = _HEADER.unpack_from(data)
    if version != expected or taken > topk or end + 8 * taken > len(data):
        message = f"expected version {expected} and at most {topk} coefficients, got version {version} and {taken}"
        raise WireError(message)

    proof = decode_proof(data[end + 8 * taken :])
    delta = np.frombuffer(data, "<f4", size, _HEADER.size)
    positions = np.frombuffer(data, "<u4", taken, end).astype(np.int64)
    values = np.frombuffer(data, "<f4", taken, end + 4 * taken)
    if taken and (positions[-1] >= size or (np.diff(positions) <= 0).any() or not values.all()):
        message = f"positions must be ascending and below {size}, and no coefficient zero"
        raise WireError(message)

    remembered = None
    if memory:
        found = np.frombuffer(data, "<f4", size, _HEADER.size + 4 * size).astype(np.float32)
        if not (found >= 0).all():  # not a number is no more than zero either
            message = "a memory of gradients holds no numbers below zero"
            raise WireError(message)
        remembered = Memory(found, *_COUNT.unpack_from(data, end - _COUNT.size))

    return OpenedChunk(number, delta.astype(np.float32), positions, values.astype(np.float32), proof, remembered)


def signs_fit(signs: Sequence[bytes], halves: Sequence[bytes], root: bytes) -> bool:
    """Whether signs of all chunks, and the other halves of their leaves (32 bytes each), are those of a committed root."""
    if len(signs) != len(halves) or not signs or any(len(half) != 32 for half in halves):
        return False

    leaves = [leaf_hash(signs_hash(own), half) for own, half in zip(signs, halves, strict=True)]
    return MerkleTree(leaves).root == root


def _memory_bytes(memory: Memory) -> bytes:
    return _floats(memory.values) + _COUNT.pack(memory.count)


def _floats(values: NDArray[np.floating[Any]]) -> bytes:
    return values.astype("<f4").tobytes()
