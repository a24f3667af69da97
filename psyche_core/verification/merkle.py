"""Commitment to the chunks of a delta: a Merkle root over them, and proofs that one chunk belongs to a root.

All hashes are SHA-256 with a domain of their own, so that no leaf is a node and no root of this kind is another hash of the run:

    signs    = H("psyche/delta-signs/1"  · sign bits, 1 = negative, lowest bit first, padded with zeros)
    opened   = H("psyche/delta-values/1" · float32 delta of the chunk · the coefficients taken off it, see `opened_hash`)
    leaf     = H("psyche/delta-leaf/1"   · signs · opened)
    gradient = H("psyche/gradient-leaf/1" · float32 elements of a verifier's chunk)
    node     = H("psyche/delta-node/1"   · left · right); the last node of an odd level goes up unchanged
    root     = H("psyche/delta-root/1"   · number of leaves, u32 little-endian · top node)

A leaf has two halves, so that a trainer can show the signs of its whole delta, which say where it computed its gradient, with 32
bytes a chunk and no values. The number of leaves is part of the root: two lists of different length have different roots.
A proof on the wire is `version u8 = 1 · index u32 · leaves u32 · siblings, 32 bytes each`; its length follows from index and
number of leaves, and is checked before anything is built.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from psyche_core.errors import WireError

VERSION = 1
MAX_LEAVES = 2**28
"""Most chunks of a delta: 10**12 parameters in chunks of 4,096."""

MAX_DEPTH = 28
"""Most siblings of a proof."""

HASH_BYTES = 32
NO_DELTA = bytes(HASH_BYTES)
"""Stands for the root of a delta that is zero: of a member that begins, or has taken the others' model."""

_HEADER = struct.Struct("<BII")
MAX_PROOF_BYTES = _HEADER.size + MAX_DEPTH * HASH_BYTES
"""Longest proof on the wire, in bytes."""


def _hash(domain: bytes, *parts: bytes) -> bytes:
    digest = hashlib.sha256(domain)
    for part in parts:
        digest.update(part)
    return digest.digest()


def signs_hash(signs: bytes) -> bytes:
    """Hash of a chunk's sign bits. signs: ceil(size / 8) bytes."""
    return _hash(b"psyche/delta-signs/1", signs)


def opened_hash(delta: bytes, taken_positions: bytes, taken_values: bytes) -> bytes:
    """Hash of what a trainer opens of a chunk.

    delta: float32 [size], little-endian. taken_positions: u32 [n], positions of the coefficients that are taken off this delta
    before the next gradient is added. taken_values: float32 [n]. The lengths are hashed too, so that no byte can move from one
    part to the next. Raises ValueError for lengths that do not fit.
    """
    if len(delta) % 4 or len(taken_positions) != len(taken_values) or len(taken_values) % 4:
        message = f"expected 4 bytes a number, got {len(delta)}, {len(taken_positions)} and {len(taken_values)} bytes"
        raise ValueError(message)

    lengths = struct.pack("<II", len(delta) // 4, len(taken_values) // 4)
    return _hash(b"psyche/delta-values/1", lengths, delta, taken_positions, taken_values)


def leaf_hash(signs: bytes, opened: bytes) -> bytes:
    """A leaf. signs: of `signs_hash`; opened: of `opened_hash`. Raises ValueError unless both have 32 bytes."""
    if len(signs) != HASH_BYTES or len(opened) != HASH_BYTES:
        message = f"a leaf is made of two hashes of {HASH_BYTES} bytes, got {len(signs)} and {len(opened)}"
        raise ValueError(message)

    return _hash(b"psyche/delta-leaf/1", signs, opened)


def committed_root(root: bytes, signer: bytes) -> bytes:
    """What who recomputed tells the coordinator: H("psyche/committed-root/1" · signer · root), 32 bytes.

    root: over the chunks of its gradient. signer: its own, 32 bytes. Commitments are public before the chunks are opened. So who
    repeats another one's commitment, and then what that one opens, has committed to nothing of its own.
    """
    return _hash(b"psyche/committed-root/1", signer, root)


def gradient_leaf(elements: bytes) -> bytes:
    """A leaf of a recomputed gradient. elements: float32 [size], little-endian."""
    return _hash(b"psyche/gradient-leaf/1", elements)


def _node(left: bytes, right: bytes) -> bytes:
    return _hash(b"psyche/delta-node/1", left, right)


def _root(leaves: int, top: bytes) -> bytes:
    return _hash(b"psyche/delta-root/1", struct.pack("<I", leaves), top)


class MerkleTree:
    """All levels over leaves, so that many proofs cost one hashing. leaves: 1 to `MAX_LEAVES` hashes. Raises ValueError."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        if not 1 <= len(leaves) <= MAX_LEAVES or any(len(leaf) != HASH_BYTES for leaf in leaves):
            message = f"a tree has 1 to {MAX_LEAVES} leaves of {HASH_BYTES} bytes, got {len(leaves)}"
            raise ValueError(message)

        self._levels = [list(leaves)]
        while len(self._levels[-1]) > 1:
            level = self._levels[-1]
            above = [_node(level[place], level[place + 1]) for place in range(0, len(level) - 1, 2)]
            self._levels.append(above + level[len(above) * 2 :])

    @property
    def root(self) -> bytes:
        """The root, 32 bytes."""
        return _root(len(self._levels[0]), self._levels[-1][0])

    def proof(self, index: int) -> Proof:
        """Prove one leaf. Raises ValueError for an index that is none."""
        leaves = len(self._levels[0])
        _check_index(index, leaves)
        siblings = []
        place = index
        for level in self._levels[:-1]:
            if (place ^ 1) < len(level):
                siblings.append(level[place ^ 1])
            place //= 2
        return Proof(index, leaves, tuple(siblings))


@dataclass(frozen=True, slots=True)
class Proof:
    """The way from a leaf to a root. index: of the leaf. leaves: their number. siblings: hashes from the leaf's level upwards."""

    index: int
    leaves: int
    siblings: tuple[bytes, ...]

    def root_of(self, leaf: bytes) -> bytes:
        """The root that this proof gives a leaf of 32 bytes. Raises ValueError for a proof of another form."""
        _check_index(self.index, self.leaves)
        if len(leaf) != HASH_BYTES or len(self.siblings) != siblings_of(self.index, self.leaves):
            message = f"leaf {self.index} of {self.leaves} has {siblings_of(self.index, self.leaves)} siblings of 32 bytes"
            raise ValueError(message)

        place, width, node = self.index, self.leaves, leaf
        remaining = iter(self.siblings)
        while width > 1:
            if (place ^ 1) < width:
                sibling = next(remaining)
                node = _node(sibling, node) if place % 2 else _node(node, sibling)
            place, width = place // 2, (width + 1) // 2
        return _root(self.leaves, node)

    def proves(self, leaf: bytes, root: bytes, *, leaves: int) -> bool:
        """Whether the leaf belongs to a root over exactly so many leaves. False, not an error, for whatever a stranger sends."""
        try:
            return self.leaves == leaves and self.root_of(leaf) == root
        except ValueError:
            return False

    def encode(self) -> bytes:
        """The bytes on the wire. Raises ValueError for a proof of another form."""
        _check_index(self.index, self.leaves)
        if len(self.siblings) != siblings_of(self.index, self.leaves) or any(len(one) != HASH_BYTES for one in self.siblings):
            message = f"the proof of leaf {self.index} of {self.leaves} has other siblings than it must have"
            raise ValueError(message)

        return _HEADER.pack(VERSION, self.index, self.leaves) + b"".join(self.siblings)


def decode_proof(data: bytes) -> Proof:
    """Decode a proof. Raises only WireError; every accepted encoding is the one that `Proof.encode` gives."""
    if not _HEADER.size <= len(data) <= MAX_PROOF_BYTES:
        message = f"a proof has {_HEADER.size} to {MAX_PROOF_BYTES} bytes, got {len(data)}"
        raise WireError(message)

    version, index, leaves = _HEADER.unpack_from(data)
    if version != VERSION:
        message = f"expected a proof of version {VERSION}, got version {version}"
        raise WireError(message)

    if not 1 <= leaves <= MAX_LEAVES or index >= leaves:
        message = f"there is no leaf {index} of {leaves}; at most {MAX_LEAVES} leaves are allowed"
        raise WireError(message)

    expected = _HEADER.size + HASH_BYTES * siblings_of(index, leaves)
    if len(data) != expected:
        message = f"the proof of leaf {index} of {leaves} has {expected} bytes, got {len(data)}"
        raise WireError(message)

    return Proof(index, leaves, tuple(data[at : at + HASH_BYTES] for at in range(_HEADER.size, len(data), HASH_BYTES)))


def siblings_of(index: int, leaves: int) -> int:
    """Number of siblings in the proof of a leaf."""
    count = 0
    while leaves > 1:
        count += (index ^ 1) < leaves
        index, leaves = index // 2, (leaves + 1) // 2
    return count


def _check_index(index: int, leaves: int) -> None:
    if not 1 <= leaves <= MAX_LEAVES or not 0 <= index < leaves:
        message = f"there is no leaf {index} of {leaves}; at most {MAX_LEAVES} leaves are allowed"
        raise ValueError(message)
