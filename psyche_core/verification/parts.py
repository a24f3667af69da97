"""What members show in a stage of a challenge, as bytes: by what a trainer looked ahead, opened deltas, an opened gradient.

Bytes of strangers, checked first. A receiver knows its own table of chunks, so it knows how long a part may be before it fetches
one. All numbers are little-endian; `version` is 1:

    no delta    version u8 · 0 u8                            the delta before the share is zero, as its root says (`NO_DELTA`)
    signs       version u8 · 1 u8 · length u32 · zeros · sign bits of all chunks · the other halves of their leaves, 32 bytes each
    deltas      version u8 · 2 u8 · chunks of the delta with the share · chunks of the one before, if there was one
    gradient    version u8 · 3 u8 · root · chunks
    payload     version u8 · 4 u8 · payload                  in runs that look ahead by own payloads, in place of signs

Opened chunks have a length u32 each and are encoded as in `opening`. `zeros` has a bit for each element, compressed with zlib: 1
where delta is zero: there the trainer did not look ahead. It is hashed with the signs of its chunk, so the root binds it.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_core.errors import WireError
from psyche_core.verification.drawing import CHUNKS
from psyche_core.verification.merkle import HASH_BYTES, MAX_PROOF_BYTES, NO_DELTA, committed_root
from psyche_core.verification.opening import OpenedChunk, decode_chunk, signs_fit

VERSION = 1
_NO_DELTA, _SIGNS, _DELTAS, _GRADIENT, _PAYLOAD = range(5)
_KIND = struct.Struct("<BB")
_LENGTH = struct.Struct("<I")
_CHUNK_HEADER = 9

Signs = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """Chunks of one shape. count: their number. size: elements of each. topk: most coefficients that one sends."""

    count: int
    size: int
    topk: int


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """The chunks of a model, group by group, in the order of their numbers.

    memory: whether deltas' chunks have a memory. ahead_bytes: longest payload by which members look ahead; None: by signs.
    """

    groups: tuple[ChunkShape, ...]
    memory: bool = False
    ahead_bytes: int | None = None

    @property
    def total(self) -> int:
        """Number of chunks."""
        return sum(group.count for group in self.groups)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return sum(group.count * group.size for group in self.groups)

    def shape_of(self, number: int) -> ChunkShape:
        """The shape of a chunk. Raises ValueError for a number that is none."""
        return self.groups[self.place_of(number)[0]]

    def place_of(self, number: int) -> tuple[int, int]:
        """Group and row of a chunk. Raises ValueError for a number that is none."""
        row = number
        for place, group in enumerate(self.groups):
            if 0 <= row < group.count:
                return place, row
            row -= group.count
        message = f"there is no chunk {number} of {self.total}"
        raise ValueError(message)

    def rows_of(self, numbers: Sequence[int]) -> list[NDArray[np.int64]]:
        """The rows of some chunks, ascending, for each group."""
        places = [self.place_of(number) for number in numbers]
        return [np.array([row for own, row in places if own == place], np.int64) for place in range(len(self.groups))]

    @property
    def max_signs_bytes(self) -> int:
        """Longest part with signs."""
        bits = sum(group.count * _sign_bytes(group) for group in self.groups)
        return _KIND.size + _LENGTH.size + bits + HASH_BYTES * self.total + self.max_zeros_bytes

    @property
    def max_zeros_bytes(self) -> int:
        """Longest compressed bits of zeros: zlib adds at most 5 bytes for 16 KiB, and a header."""
        raw = (self.elements + 7) // 8
        return raw + raw // 1024 + 64

    @property
    def max_opened_bytes(self) -> int:
        """Longest part with opened chunks."""
        floats = 2 if self.memory else 1
        longest = max((4 * floats * group.size + 8 * group.topk for group in self.groups), default=0)
        longest += _CHUNK_HEADER + _LENGTH.size + MAX_PROOF_BYTES
        return _KIND.size + HASH_BYTES + 2 * CHUNKS * (_LENGTH.size + longest)

    @property
    def max_bytes(self) -> int:
        """Longest part of any kind."""
        lookahead = self.max_signs_bytes if self.ahead_bytes is None else _KIND.size + self.ahead_bytes
        return max(lookahead, self.max_opened_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class ShownSigns:
    """Signs as they are shown. signs: int8 [count, size] for each group, -1, 0 or +1. bits, halves: of each chunk's leaf."""

    signs: tuple[Signs, ...]
    bits: tuple[bytes, ...]
    halves: tuple[bytes, ...]

    def belong(self, root: bytes) -> bool:
        """Whether a delta with this root has these signs."""
        return signs_fit(self.bits, self.halves, root)


@dataclass(frozen=True, slots=True, eq=False)
class ShownDeltas:
    """Opened chunks of the delta with a share, and of the one before; None where that is zero."""

    after: tuple[OpenedChunk, ...]
    before: tuple[OpenedChunk, ...] | None


def encode_no_delta() -> bytes:
    """Nothing was in delta before the share."""
    return _KIND.pack(VERSION, _NO_DELTA)


def encode_signs(delta: Sequence[NDArray[np.floating[Any]]], halves: Sequence[bytes]) -> bytes:
    """The signs of a delta. delta: float32 [count, size] for each group. halves: of all chunks, 32 bytes each."""
    zeros = np.packbits(np.concatenate([group.reshape(-1) == 0 for group in delta]), bitorder="little").tobytes()
    packed = zlib.compress(zeros, 6)
    bits = [np.packbits(group < 0, axis=1, bitorder="little").tobytes() for group in delta]
    return b"".join((_KIND.pack(VERSION, _SIGNS), _LENGTH.pack(len(packed)), packed, *bits, *halves))


def encode_payload(payload: bytes) -> bytes:
    """By which payload of its own a trainer looked ahead; empty: it had none in flight."""
    return _KIND.pack(VERSION, _PAYLOAD) + payload


def encode_deltas(after: Sequence[OpenedChunk], before: Sequence[OpenedChunk] | None) -> bytes:
    """Opened chunks of the delta with a share, and the same ones of the delta before; None if that is zero."""
    return _KIND.pack(VERSION, _DELTAS) + _encoded([*after, *(before or ())])


def encode_gradient(root: bytes, chunks: Sequence[OpenedChunk]) -> bytes:
    """Opened chunks of a recomputed gradient with this root."""
    return _KIND.pack(VERSION, _GRADIENT) + root + _encoded(chunks)


def decode_signs(data: bytes, table: ChunkTable, *, root: bytes) -> ShownSigns | None:
    """The signs of the delta with this root, None if it is zero and says so. Raises only WireError, also for other signs."""
    kind = _kind(data)
    if root == NO_DELTA:
        if kind == _NO_DELTA and len(data) == _KIND.size:
            return None
        message = "the delta is zero, so no signs of it can be shown"
        raise WireError(message)

    if kind != _SIGNS or len(data) < _KIND.size + _LENGTH.size:
        message = f"expected signs, got a part of kind {kind} with {len(data)} bytes"
        raise WireError(message)

    (packed,) = _LENGTH.unpack_from(data, _KIND.size)
    start = _KIND.size + _LENGTH.size + packed
    widths = [_sign_bytes(group) for group in table.groups]
    bits_end = start + sum(group.count * width for group, width in zip(table.groups, widths, strict=True))
    if packed > table.max_zeros_bytes or len(data) != bits_end + HASH_BYTES * table.total:
        message = f"signs of {table.total} chunks cannot have {len(data)} bytes"
        raise WireError(message)

    zeros = _zeros(data[_KIND.size + _LENGTH.size : start], table.elements)
    found, bits, at, element = [], [], start, 0
    for group, width in zip(table.groups, widths, strict=True):
        end = at + group.count * width
        packed_rows = np.frombuffer(data, np.uint8, group.count * width, at).reshape(group.count, width)
        negative = np.unpackbits(packed_rows, axis=1, count=group.size, bitorder="little")
        signs = (1 - 2 * negative.astype(np.int8)).astype(np.int8)
        own = zeros[element : element + group.count * group.size].reshape(group.count, group.size)
        found.append(np.where(own, np.int8(0), signs))
        packed_zeros = np.packbits(own, axis=1, bitorder="little")
        bits += [one.tobytes() + other.tobytes() for one, other in zip(packed_rows, packed_zeros, strict=True)]
        at, element = end, element + group.count * group.size
    halves = tuple(data[place : place + HASH_BYTES] for place in range(bits_end, len(data), HASH_BYTES))
    shown = ShownSigns(tuple(found), tuple(bits), halves)
    if not shown.belong(root):
        message = "these signs are not those of the delta that was committed to"
        raise WireError(message)

    return shown


def decode_payload(data: bytes, table: ChunkTable, *, root: bytes) -> bytes:
    """By which payload a trainer looked ahead, empty for none. Raises only WireError. The payload itself is not checked.

    root: of the delta before the share. Before the first result there is none in flight.
    """
    kind = _kind(data)
    if root == NO_DELTA:
        if kind == _NO_DELTA and len(data) == _KIND.size:
            return b""
        message = "the delta is zero, so there was no payload to look ahead by"
        raise WireError(message)

    _expect(kind, _PAYLOAD)
    payload = data[_KIND.size :]
    if table.ahead_bytes is None or len(payload) > table.ahead_bytes:
        message = f"expected a payload of at most {table.ahead_bytes or 0} bytes, got {len(payload)}"
        raise WireError(message)

    return payload


def decode_deltas(data: bytes, table: ChunkTable, *, numbers: Sequence[int], roots: bytes) -> ShownDeltas:
    """Opened deltas with these roots: of the delta with the share, 32 bytes, and of the one before, 32 bytes.

    numbers: of the drawn chunks, ascending. Raises only WireError, also for chunks that belong to other roots.
    """
    after_root, before_root = roots[:HASH_BYTES], roots[HASH_BYTES:]
    twice = before_root != NO_DELTA
    _expect(_kind(data), _DELTAS)
    found = _decoded(data[_KIND.size :], table, [*numbers, *(numbers if twice else ())], memory=table.memory)
    after, before = found[: len(numbers)], found[len(numbers) :]
    belong = all(chunk.belongs(after_root, chunks=table.total) for chunk in after)
    if not belong or not all(chunk.belongs(before_root, chunks=table.total) for chunk in before):
        message = "an opened chunk is not of the delta that was committed to"
        raise WireError(message)

    return ShownDeltas(after, before if twice else None)


def decode_gradient(
    data: bytes, table: ChunkTable, *, numbers: Sequence[int], committed: bytes, signer: bytes
) -> tuple[OpenedChunk, ...]:
    """Opened chunks of a gradient. committed: what its owner, this signer, committed to, see `merkle.committed_root`.

    numbers: of the drawn chunks, ascending. Raises only WireError, also for chunks that belong to another root.
    """
    _expect(_kind(data), _GRADIENT)
    root = data[_KIND.size : _KIND.size + HASH_BYTES]
    if len(root) != HASH_BYTES or committed_root(root, signer) != committed:
        message = "the root is not the one that was committed to"
        raise WireError(message)

    found = _decoded(data[_KIND.size + HASH_BYTES :], table, numbers)
    if not all(chunk.is_gradient_of(root, chunks=table.total) for chunk in found):
        message = "an opened chunk is not of the gradient that was committed to"
        raise WireError(message)

    return found


def _encoded(chunks: Sequence[OpenedChunk]) -> bytes:
    parts = [chunk.encode() for chunk in chunks]
    return b"".join(itertools.chain.from_iterable((_LENGTH.pack(len(part)), part) for part in parts))


def _decoded(data: bytes, table: ChunkTable, numbers: Sequence[int], *, memory: bool = False) -> tuple[OpenedChunk, ...]:
    found: list[OpenedChunk] = []
    at = 0
    for number in numbers:
        if len(data) < at + _LENGTH.size:
            message = f"expected {len(numbers)} opened chunks, got {len(found)}"
            raise WireError(message)

        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        shape = table.shape_of(number)
        chunk = decode_chunk(data[at : at + length], size=shape.size, topk=shape.topk, memory=memory)
        at += length
        if chunk.number != number:
            message = f"expected chunk {number}, got chunk {chunk.number}"
            raise WireError(message)
        found.append(chunk)
    if at != len(data):
        message = f"expected {at} bytes of opened chunks, got {len(data)}"
        raise WireError(message)

    return tuple(found)


def _kind(data: bytes) -> int:
    if len(data) < _KIND.size or data[0] != VERSION:
        message = f"expected a part of version {VERSION}, got {data[:1].hex() or 'nothing'}"
        raise WireError(message)

    return data[1]


def _expect(kind: int, wanted: int) -> None:
    if kind != wanted:
        message = f"expected a part of kind {wanted}, got kind {kind}"
        raise WireError(message)


def _sign_bytes(group: ChunkShape) -> int:
    return (group.size + 7) // 8


def _zeros(packed: bytes, elements: int) -> NDArray[np.bool_]:
    length = (elements + 7) // 8
    unpacking = zlib.decompressobj()
    try:
        raw = unpacking.decompress(packed, length + 1)
    except zlib.error:
        raw = b""
    if len(raw) != length or not unpacking.eof or unpacking.unused_data:
        message = f"expected compressed bits of {elements} elements"
        raise WireError(message)

    found: NDArray[np.bool_] = np.unpackbits(np.frombuffer(raw, np.uint8), count=elements, bitorder="little").astype(np.bool_)
    return found
