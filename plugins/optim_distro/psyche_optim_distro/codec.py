"""The payload: a versioned header and, per chunk class, counts, positions and signs or values. Little endian, no pickle.

    header   magic "DsTO" · version u8 = 1 · values u8 (0 signs, 1 float32) · fingerprint of the parameter table, 16 bytes
    class    flags u8 (1: counts follow) · rice u8 · unary length u32, in the order of `Layout.classes`, then
             counts   per chunk, bit_length(keep) bits each; absent when every chunk sends `keep` coefficients
             low      `rice` low bits of each gap
             unary    gap >> rice of each gap
             values   1 bit each (1 = negative) or float32

A gap is the number of positions skipped since the previous coefficient of the chunk (Golomb-Rice coding, Rice parameter chosen
by the sender for the class). For k uniform positions of n this is within about 4 % of the bound log2 C(n, k). `decode`
allocates in proportion to the bytes it was given, and to our own table, whatever the bytes say.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from psyche_core.errors import PayloadRejected
from psyche_optim_distro.bits import pack_integers, pack_unary, packed_bytes, unpack_integers, unpack_unary
from psyche_optim_distro.layout import ChunkClass, IntArray, Layout
from psyche_optim_distro.selection import Selection, concatenate

MAGIC = b"DsTO"
VERSION = 1
SIGNS, FLOAT32 = 0, 1
MAX_VALUE = 65536.0
"""Largest magnitude of a float32 value: far over any honest coefficient, far under what could overflow a sum."""

_HEADER = struct.Struct("<4sBB16s")
_CLASS = struct.Struct("<BBI")
_HAS_COUNTS = 1


def encode(layout: Layout, selection: Selection, *, one_bit: bool) -> bytes:
    """The payload of a selection. With `one_bit` only the signs of its values are kept."""
    parts = [_HEADER.pack(MAGIC, VERSION, SIGNS if one_bit else FLOAT32, layout.fingerprint)]
    ends = np.searchsorted(layout.chunk_class[selection.chunks], np.arange(len(layout.classes)), side="right")
    start = 0
    for entry, stop in zip(layout.classes, ends.tolist(), strict=True):
        rows = layout.chunk_rank[selection.chunks[start:stop]]
        parts += _encode_class(entry, rows, selection.indices[start:stop], selection.values[start:stop], one_bit=one_bit)
        start = stop

    return b"".join(parts)


def decode(layout: Layout, payload: bytes, *, one_bit: bool) -> Selection:
    """The selection in a payload, checked against our own table. Raises PayloadRejected and nothing else."""
    limit = max_payload_bytes(layout, one_bit=one_bit)
    if len(payload) > limit:
        message = f"a payload of {len(payload)} bytes is over the {limit} bytes this model can need"
        raise PayloadRejected(message)

    reader = _Reader(payload)
    magic, version, values, fingerprint = _HEADER.unpack(reader.take(_HEADER.size))
    if magic != MAGIC or version != VERSION:
        message = f"expected a DisTrO payload of version {VERSION}, got {magic!r} version {version}"
        raise PayloadRejected(message)

    if values != (SIGNS if one_bit else FLOAT32):
        message = f"payload has value format {values}, this run uses quantize_1bit = {one_bit}"
        raise PayloadRejected(message)

    if fingerprint != layout.fingerprint:
        message = "payload was made for other parameters, chunk size or top-k than ours"
        raise PayloadRejected(message)

    selection = concatenate([_decode_class(entry, reader, one_bit=one_bit) for entry in layout.classes])
    reader.finish()
    return selection


def max_payload_bytes(layout: Layout, *, one_bit: bool) -> int:
    """No payload that `encode` writes for this table is longer.

    A chunk with c coefficients has at most c (rice + 1) + ((size - c) >> rice) position bits, which grows with c; the sender's
    Rice parameter is at least as good as the one that makes this smallest. Two bytes per class for rounding.
    """
    total = _HEADER.size
    for entry in layout.classes:
        chunks, count = entry.chunks.size, entry.chunks.size * entry.keep
        positions = min(
            packed_bytes(count, rice + 1) + packed_bytes(chunks, (entry.size - entry.keep) >> rice) for rice in _rices(entry)
        )
        value_bytes = packed_bytes(count, 1 if one_bit else 32)
        total += _CLASS.size + packed_bytes(chunks, entry.keep.bit_length()) + positions + 2 + value_bytes

    return total


def _rices(entry: ChunkClass) -> range:
    """Rice parameters worth trying, and allowed: 0 up to the bits of an index."""
    return range((entry.size - 1).bit_length() + 1)


def _encode_class(
    entry: ChunkClass, rows: IntArray, indices: IntArray, values: NDArray[np.float32], *, one_bit: bool
) -> list[bytes]:
    """rows: position of each coefficient's chunk in the class, ascending; indices ascending inside a row."""
    counts = np.bincount(rows, minlength=entry.chunks.size)
    gaps = np.diff(indices, prepend=-1) - 1
    first = np.diff(rows, prepend=-1) != 0
    gaps[first] = indices[first]
    rice = min(_rices(entry), key=lambda bits: gaps.size * bits + int((gaps >> bits).sum()))
    full = bool((counts == entry.keep).all())
    unary = pack_unary(gaps >> rice)
    return [
        _CLASS.pack(0 if full else _HAS_COUNTS, rice, len(unary)),
        b"" if full else pack_integers(counts, entry.keep.bit_length()),
        pack_integers(gaps & ((1 << rice) - 1), rice),
        unary,
        pack_integers(np.signbit(values).astype(np.int64), 1) if one_bit else values.astype("<f4").tobytes(),
    ]


def _decode_class(entry: ChunkClass, reader: _Reader, *, one_bit: bool) -> Selection:
    flags, rice, unary_bytes = _CLASS.unpack(reader.take(_CLASS.size))
    if flags not in (0, _HAS_COUNTS) or rice not in _rices(entry):
        message = f"class header has flags {flags} and Rice parameter {rice}; expected 0 or 1, and 0 to {_rices(entry)[-1]}"
        raise PayloadRejected(message)

    counts = _decode_counts(entry, reader) if flags == _HAS_COUNTS else np.full(entry.chunks.size, entry.keep)
    total = int(counts.sum())
    low = unpack_integers(reader.take(packed_bytes(total, rice)), total, rice)
    high = unpack_unary(reader.take(unary_bytes), total)
    rows = np.repeat(np.arange(counts.size), counts)

    # Positions: running sum of gap + 1 inside each row; what ran up before a row's first coefficient is taken off.
    ends = np.cumsum((high << rice | low) + 1)
    before_row = np.concatenate(([0], ends))[np.cumsum(counts) - counts]
    indices: IntArray = ends - before_row[rows] - 1
    if total and int(indices.max()) >= entry.size:
        message = f"a coefficient index {int(indices.max())} is outside its chunk of {entry.size}"
        raise PayloadRejected(message)

    return Selection(entry.chunks[rows], indices, _decode_values(reader, total, one_bit=one_bit))


def _decode_counts(entry: ChunkClass, reader: _Reader) -> IntArray:
    width = entry.keep.bit_length()
    counts = unpack_integers(reader.take(packed_bytes(entry.chunks.size, width)), entry.chunks.size, width)
    if int(counts.max()) > entry.keep or bool((counts == entry.keep).all()):
        message = f"chunk counts must not be over {entry.keep}, and are left out when all are {entry.keep}"
        raise PayloadRejected(message)

    return counts


def _decode_values(reader: _Reader, total: int, *, one_bit: bool) -> NDArray[np.float32]:
    if one_bit:
        return (1 - 2 * unpack_integers(reader.take(packed_bytes(total, 1)), total, 1)).astype(np.float32)

    values = np.frombuffer(reader.take(4 * total), dtype="<f4").astype(np.float32)
    magnitudes = np.abs(values)
    if not bool(((magnitudes > 0) & (magnitudes <= MAX_VALUE)).all()):
        message = f"coefficients must be finite, not zero and within ±{MAX_VALUE:g}"
        raise PayloadRejected(message)

    return values


class _Reader:
    """Takes byte strings off a payload; refuses to pass its end or to leave something over."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            message = f"payload of {len(self._data)} bytes ends early: {count} bytes expected at {self._at}"
            raise PayloadRejected(message)

        self._at += count
        return self._data[self._at - count : self._at]

    def finish(self) -> None:
        if self._at != len(self._data):
            message = f"{len(self._data) - self._at} bytes follow the payload"
            raise PayloadRejected(message)
