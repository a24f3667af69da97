"""The payload: a versioned header and, per chunk class, counts, positions and signs or values. Little endian, no pickle.

    header   magic "DsTO" · version u8 = 2 · values u8 (`ValueFormat`) · fingerprint of the parameter table, 16 bytes
    class    counts u8 (0 full, 1 table, 2 exceptions) · rice u8 · unary length u32, in the order of `Layout.classes`, then
             counts   full: nothing, every chunk sends `topk` coefficients
                      table: one count per chunk, bit_length(topk) bits each
                      exceptions: their number u32, their places in the class, bit_length(chunks - 1) bits each, and their counts,
                      bit_length(topk) bits each
                      The shortest of these is mandatory
             low      `rice` low bits of each gap
             unary    gap >> rice of each gap
             values   1 bit each (1 = negative), float32, or the upper half of float32 (bfloat16)

A gap is the number of positions between a coefficient and the previous one of its chunk. Gaps are Golomb-Rice coded; the sender
chooses the Rice parameter for each class. For k uniform positions of n this is within about 4 % of the bound log2 C(n, k).
`decode` allocates memory in proportion to the payload's length and to our own table, whatever the payload contains.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_core.errors import PayloadRejected
from psyche_optim_distro.chunks.layout import ChunkClass, IntArray, Layout
from psyche_optim_distro.payload.bit_packing import (
    pack_integers,
    pack_unary,
    packed_bytes,
    unary_ends,
    unpack_flags,
    unpack_integers,
)
from psyche_optim_distro.payload.top_k import Selection, concatenate
from psyche_optim_distro.value_format import ValueFormat

MAGIC = b"DsTO"
VERSION = 2
MAX_VALUE = 65536.0
"""Largest magnitude of a value: far above any honest coefficient, and far below what could overflow a sum."""

MIN_VALUE = 2.0**-126
"""Smallest magnitude of a value. A smaller value is replaced by this, so that no value is rounded to zero."""


_VALUE_BITS = {ValueFormat.SIGNS: 1, ValueFormat.FLOAT32: 32, ValueFormat.BFLOAT16: 16}

_HEADER = struct.Struct("<4sBB16s")
_CLASS = struct.Struct("<BBI")
_FULL, _TABLE, _EXCEPTIONS = 0, 1, 2
_EXCEPTION_COUNT = struct.Struct("<I")


def encode(layout: Layout, selection: Selection, *, values: ValueFormat) -> bytes:
    """Encode a selection. Its values must be the result of `as_sent` for the same format `values`."""
    parts = [_HEADER.pack(MAGIC, VERSION, values, layout.fingerprint)]
    ends = np.searchsorted(layout.chunk_class[selection.chunks], np.arange(len(layout.classes)), side="right")
    start = 0
    for entry, stop in zip(layout.classes, ends.tolist(), strict=True):
        rows = layout.chunk_rank[selection.chunks[start:stop]]
        parts += _encode_class(entry, rows, selection.indices[start:stop], selection.values[start:stop], values)
        start = stop

    return b"".join(parts)


def as_sent(exact: NDArray[np.float32], values: ValueFormat) -> NDArray[np.float32]:
    """Return the values that peers decode for finite coefficients [n]: signs, or values limited and rounded (half to even)."""
    if values is ValueFormat.SIGNS:
        return np.where(np.signbit(exact), np.float32(-1), np.float32(1))

    bounded: NDArray[np.float32] = np.copysign(np.abs(exact).clip(MIN_VALUE, MAX_VALUE), exact).astype(np.float32)
    if values is ValueFormat.BFLOAT16:
        bits = bounded.view(np.uint32)
        bits = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)
        bounded = bits.view(np.float32)
    return bounded


def decode(layout: Layout, payload: bytes, *, values: ValueFormat) -> Selection:
    """Decode a payload and check it against our own table. Raises PayloadRejected, never anything else."""
    return concatenate([_decoded(section, values) for section in sections(layout, payload, values=values)])


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """One chunk class of a payload, split into its fields. Lengths are checked; gaps and values are not.

    counts: int64 [chunks of the class], coefficients of each chunk. total: their sum. full: whether every chunk sends `topk`.
    rice: Rice parameter of the gaps. low, unary, values: bytes of these fields, see the module. at: where `low` begins in the
    payload, in bytes; the other two follow it.
    """

    entry: ChunkClass
    counts: IntArray
    total: int
    full: bool
    rice: int
    low: bytes
    unary: bytes
    values: bytes
    at: int


def sections(layout: Layout, payload: bytes, *, values: ValueFormat) -> Iterator[Section]:
    """Yield the chunk classes of a payload. Raises PayloadRejected, after the last class for bytes that follow it."""
    limit = max_payload_bytes(layout, values=values)
    if len(payload) > limit:
        message = f"a payload of {len(payload)} bytes is over the {limit} bytes this model can need"
        raise PayloadRejected(message)

    reader = _Reader(payload)
    magic, version, form, fingerprint = _HEADER.unpack(reader.take(_HEADER.size))
    if magic != MAGIC or version != VERSION:
        message = f"expected a DisTrO payload of version {VERSION}, got {magic!r} version {version}"
        raise PayloadRejected(message)

    if form != values:
        message = f"payload has value format {form}, this run's is {int(values)} ({values.name.lower()})"
        raise PayloadRejected(message)

    if fingerprint != layout.fingerprint:
        message = "payload was made for other parameters, chunk size or top-k than ours"
        raise PayloadRejected(message)

    for entry in layout.classes:
        yield _section(entry, reader, values)
    reader.finish()


def max_payload_bytes(layout: Layout, *, values: ValueFormat) -> int:
    """Upper bound of a payload's size in bytes, computed from the parameter table alone.

    A chunk with c coefficients has at most c (rice + 1) + ((size - c) >> rice) position bits, which grows with c. The sender's
    Rice parameter needs no more bits than the one that minimises this. Two bytes per class allow for rounding.
    """
    return _HEADER.size + sum(_max_class_bytes(entry.size, entry.topk, entry.chunks.size, values) for entry in layout.classes)


@lru_cache(maxsize=256)
def _max_class_bytes(size: int, topk: int, chunks: int, values: ValueFormat) -> int:
    count = chunks * topk
    positions = min(packed_bytes(count, rice + 1) + packed_bytes(chunks, (size - topk) >> rice) for rice in _rices(size))
    return _CLASS.size + packed_bytes(chunks, topk.bit_length()) + positions + 2 + packed_bytes(count, _VALUE_BITS[values])


def _rices(size: int) -> range:
    """Allowed Rice parameters for chunks of `size` elements: 0 to the number of bits of an index."""
    return range((size - 1).bit_length() + 1)


def _encode_class(
    entry: ChunkClass, rows: IntArray, indices: IntArray, coefficients: NDArray[np.float32], values: ValueFormat
) -> list[bytes]:
    """Return the fields of a class. rows: place of each coefficient's chunk in the class; indices: both ascending, per row."""
    counts = np.bincount(rows, minlength=entry.chunks.size)
    gaps = np.diff(indices, prepend=-1) - 1
    first = np.diff(rows, prepend=-1) != 0
    gaps[first] = indices[first]
    rice = min(_rices(entry.size), key=lambda bits: gaps.size * bits + int((gaps >> bits).sum()))
    form, count_bytes = _encode_counts(entry, counts)
    unary = pack_unary(gaps >> rice)
    return [
        _CLASS.pack(form, rice, len(unary)),
        count_bytes,
        pack_integers(gaps & ((1 << rice) - 1), rice),
        unary,
        _encode_values(coefficients, values),
    ]


def _encode_counts(entry: ChunkClass, counts: IntArray) -> tuple[int, bytes]:
    """Return the form and the bytes of the field `counts`."""
    short = np.flatnonzero(counts != entry.topk)
    if short.size == 0:
        return _FULL, b""

    if not _exceptions_are_shorter(entry, short.size):
        return _TABLE, pack_integers(counts, entry.topk.bit_length())

    places = pack_integers(short, _place_bits(entry))
    return _EXCEPTIONS, _EXCEPTION_COUNT.pack(short.size) + places + pack_integers(counts[short], entry.topk.bit_length())


def _place_bits(entry: ChunkClass) -> int:
    return int(entry.chunks.size - 1).bit_length()


def _exceptions_are_shorter(entry: ChunkClass, count: int) -> bool:
    width = entry.topk.bit_length()
    exceptions = _EXCEPTION_COUNT.size + packed_bytes(count, _place_bits(entry)) + packed_bytes(count, width)
    return exceptions < packed_bytes(entry.chunks.size, width)


def _section(entry: ChunkClass, reader: _Reader, values: ValueFormat) -> Section:
    form, rice, unary_bytes = _CLASS.unpack(reader.take(_CLASS.size))
    if form not in (_FULL, _TABLE, _EXCEPTIONS) or rice not in _rices(entry.size):
        most = _rices(entry.size)[-1]
        message = f"class header has counts form {form} and Rice parameter {rice}; expected 0 to 2, and 0 to {most}"
        raise PayloadRejected(message)

    counts = _decode_counts(entry, reader, form)
    total, at = int(counts.sum()), reader.at
    low, unary = reader.take(packed_bytes(total, rice)), reader.take(unary_bytes)
    own = reader.take(packed_bytes(total, _VALUE_BITS[values]))
    return Section(entry, counts, total, form == _FULL, rice, low, unary, own, at)


def _decoded(section: Section, values: ValueFormat) -> Selection:
    entry, counts, total, rice = section.entry, section.counts, section.total, section.rice
    low = unpack_integers(section.low, total, rice)
    ends = unary_ends(section.unary, total)
    every = entry.topk if section.full else counts

    # A position is the running sum of gap + 1 inside its chunk: the sum over the class minus the sum before the chunk. A gap is
    # its low bits plus 2**rice times its high part. `ends` of code i is i plus the sum of all high parts up to i.
    kind: type[np.signedinteger[Any]] = np.int32 if ((8 * len(section.unary) + total + 1) << rice) + total < 2**31 else np.int64
    reached: NDArray[np.signedinteger[Any]] = np.arange(total + 1, dtype=kind)
    reached *= 1 - (1 << rice)
    reached[1:] += np.cumsum(low, dtype=kind)
    reached[1:] += (ends.astype(kind) + 1) << rice
    before = reached[np.cumsum(counts) - counts]
    indices = reached[1:] - np.repeat(before + 1, every)
    if total and int(indices.max()) >= entry.size:
        message = f"a coefficient index {int(indices.max())} is outside its chunk of {entry.size}"
        raise PayloadRejected(message)

    return Selection(np.repeat(entry.chunks, every), indices, _decode_values(section.values, total, values))


def _decode_counts(entry: ChunkClass, reader: _Reader, form: int) -> IntArray:
    """Decode the field `counts`: int64 [chunks]. Raises PayloadRejected, also if the form is not the shortest one."""
    counts = np.full(entry.chunks.size, entry.topk)
    width = entry.topk.bit_length()
    short = 0
    if form == _TABLE:
        counts[:] = unpack_integers(reader.take(packed_bytes(entry.chunks.size, width)), entry.chunks.size, width)
        short = int(np.count_nonzero(counts != entry.topk))
    elif form == _EXCEPTIONS:
        (short,) = _EXCEPTION_COUNT.unpack(reader.take(_EXCEPTION_COUNT.size))
        if not _exceptions_are_shorter(entry, short):
            message = f"{short} exceptions of {entry.chunks.size} chunk counts are longer than a table of them"
            raise PayloadRejected(message)

        bits = _place_bits(entry)
        places = unpack_integers(reader.take(packed_bytes(short, bits)), short, bits)
        if bool((places[1:] <= places[:-1]).any()) or bool((places[-1:] >= entry.chunks.size).any()):
            message = f"chunks with fewer coefficients must be listed in ascending order, from 0 to {entry.chunks.size - 1}"
            raise PayloadRejected(message)

        fewer = unpack_integers(reader.take(packed_bytes(short, width)), short, width)
        if bool((fewer == entry.topk).any()):
            message = f"a chunk with {entry.topk} coefficients is no exception"
            raise PayloadRejected(message)

        counts[places] = fewer

    shortest = _TABLE if short and not _exceptions_are_shorter(entry, short) else _EXCEPTIONS if short else _FULL
    if form != shortest or int(counts.max()) > entry.topk:
        message = f"chunk counts must be at most {entry.topk} and in their shortest form, {shortest}; got form {form}"
        raise PayloadRejected(message)

    return counts


def _encode_values(coefficients: NDArray[np.float32], values: ValueFormat) -> bytes:
    if values is ValueFormat.SIGNS:
        return pack_integers(np.signbit(coefficients).astype(np.int64), 1)
    if values is ValueFormat.BFLOAT16:
        return (coefficients.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()
    return coefficients.astype("<f4").tobytes()


def _decode_values(data: bytes, total: int, values: ValueFormat) -> NDArray[np.float32]:
    if values is ValueFormat.SIGNS:
        return np.float32(1) - np.float32(2) * unpack_flags(data, total)

    if values is ValueFormat.BFLOAT16:
        coefficients = (np.frombuffer(data, dtype="<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        coefficients = np.frombuffer(data, dtype="<f4").astype(np.float32)
    magnitudes = np.abs(coefficients)
    if not bool(((magnitudes >= MIN_VALUE) & (magnitudes <= MAX_VALUE)).all()):
        message = f"coefficients must be finite, not zero and within ±{MAX_VALUE:g}"
        raise PayloadRejected(message)

    return coefficients


class _Reader:
    """Reads a payload from front to back. Raises PayloadRejected for a read past its end and for bytes left over."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at(self) -> int:
        """Number of bytes that were read."""
        return self._at

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
