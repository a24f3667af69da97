"""The payload: a versioned header, then counts, levels, positions and values. Little endian, no pickle.

    header   magic "SpLC" · version u8 = 1 · fingerprint of the parameter table, 16 bytes
    form     u8: 0 every chunk sends its quota, 1 a table says how many · rice u8 · unary length u32
    counts   form 1: one per chunk, bit_length(topk) bits each. Form 0 is mandatory where it can be used
    levels   two codes u8 for each chunk that sends anything, the lower one first, see `quantizer`
    low      `rice` low bits of each gap
    unary    gap >> rice of each gap
    values   2 bits each: 1 = negative, 2 = the upper level

A gap is the number of elements between a sent one and the one before it in its chunk. Gaps are Golomb-Rice coded, as DisTrO's
are; the sender chooses the Rice parameter. `decode` allocates memory in proportion to the payload's length and to our own table,
whatever the payload says.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from psyche_core.errors import PayloadRejected
from psyche_optim_sparseloco.bit_packing import pack_integers, pack_unary, packed_bytes, unpack_integers, unpack_unary
from psyche_optim_sparseloco.layout import IntArray, Layout
from psyche_optim_sparseloco.quantizer import LARGEST_CODE, Quantized

MAGIC = b"SpLC"
VERSION = 1

_HEADER = struct.Struct("<4sB16sBBI")
_FULL, _TABLE = 0, 1
_VALUE_BITS = 2


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """A sparse update: amounts, int32 [n], at the elements `positions` of the flat buffer, int64 [n] ascending.

    Amounts are in units, see `quantizer`.
    """

    positions: IntArray
    amounts: NDArray[np.int32]


def encode(layout: Layout, positions: IntArray, counts: IntArray, values: Quantized) -> bytes:
    """Encode an update. positions: ascending, [n]. counts: how many of them each chunk has, [chunks]."""
    gaps = _gaps(layout, positions, counts)
    rice = min(_rices(layout), key=lambda bits: gaps.size * bits + int((gaps >> bits).sum()))
    form = _FULL if bool((counts == layout.quotas).all()) else _TABLE
    unary = pack_unary(gaps >> rice)
    return b"".join(
        [
            _HEADER.pack(MAGIC, VERSION, layout.fingerprint, form, rice, len(unary)),
            pack_integers(counts, layout.topk.bit_length()) if form == _TABLE else b"",
            values.codes.tobytes(),
            pack_integers(gaps & ((1 << rice) - 1), rice),
            unary,
            pack_integers(values.negative.astype(np.int64) + 2 * values.upper, _VALUE_BITS),
        ]
    )


def decode(layout: Layout, payload: bytes) -> Update:
    """Decode a payload and check it against our own table. Raises PayloadRejected, never anything else."""
    limit = max_payload_bytes(layout)
    if len(payload) > limit:
        message = f"a payload of {len(payload)} bytes is over the {limit} bytes this model can need"
        raise PayloadRejected(message)

    reader = _Reader(payload)
    magic, version, fingerprint, form, rice, unary_bytes = _HEADER.unpack(reader.take(_HEADER.size))
    if magic != MAGIC or version != VERSION:
        message = f"expected a SparseLoCo payload of version {VERSION}, got {magic!r} version {version}"
        raise PayloadRejected(message)

    if fingerprint != layout.fingerprint:
        message = "payload was made for other parameters or settings (chunk size, top-k, inner steps, betas) than ours"
        raise PayloadRejected(message)

    if form not in (_FULL, _TABLE) or rice not in _rices(layout):
        message = f"payload has counts form {form} and Rice parameter {rice}; expected 0 or 1, and 0 to {_rices(layout)[-1]}"
        raise PayloadRejected(message)

    counts = _counts(layout, reader, form)
    total, senders = int(counts.sum()), int(np.count_nonzero(counts))
    codes = np.frombuffer(reader.take(2 * senders), dtype=np.uint8).reshape(senders, 2)
    if bool((codes > LARGEST_CODE).any()) or bool((codes[:, 0] > codes[:, 1]).any()):
        message = f"level codes must be at most {LARGEST_CODE} and the lower one first"
        raise PayloadRejected(message)

    low = unpack_integers(reader.take(packed_bytes(total, rice)), total, rice)
    high = unpack_unary(reader.take(unary_bytes), total)
    bits = unpack_integers(reader.take(packed_bytes(total, _VALUE_BITS)), total, _VALUE_BITS)
    reader.finish()
    values = Quantized(codes, (bits & 1).astype(np.bool_), (bits >> 1).astype(np.bool_))
    return Update(_positions(layout, (high << rice) + low, counts), values.amounts(counts[counts > 0]))


def max_payload_bytes(layout: Layout) -> int:
    """Upper bound of a payload's size in bytes, computed from the table alone.

    A chunk that sends c elements has at most c (rice + 1) + ((size - c) >> rice) position bits, which grows with c. The sender's
    Rice parameter needs no more bits than the one that minimises this. Two bytes allow for rounding.
    """
    count, chunks = int(layout.quotas.sum()), layout.quotas.size
    rest = layout.sizes - layout.quotas
    positions = min(packed_bytes(count, rice + 1) + packed_bytes(int((rest >> rice).sum()), 1) for rice in _rices(layout))
    table = packed_bytes(chunks, layout.topk.bit_length())
    return _HEADER.size + table + 2 * chunks + positions + 2 + packed_bytes(count, _VALUE_BITS)


def _rices(layout: Layout) -> range:
    """Allowed Rice parameters: 0 to the number of bits of an index in a chunk."""
    return range((layout.chunk_size - 1).bit_length() + 1)


def _counts(layout: Layout, reader: _Reader, form: int) -> IntArray:
    """Elements that each chunk sends, int64 [chunks]. Raises PayloadRejected."""
    if form == _FULL:
        return layout.quotas

    width, chunks = layout.topk.bit_length(), layout.quotas.size
    counts = unpack_integers(reader.take(packed_bytes(chunks, width)), chunks, width).astype(np.int64)
    if bool((counts > layout.quotas).any()) or bool((counts == layout.quotas).all()):
        message = "a table of counts must have at most each chunk's quota, and fewer somewhere"
        raise PayloadRejected(message)

    return counts


def _gaps(layout: Layout, positions: IntArray, counts: IntArray) -> IntArray:
    before = np.concatenate([np.full(1, -1), positions[:-1]])[: positions.size]
    first = np.flatnonzero(counts)
    before[(np.cumsum(counts) - counts)[first]] = layout.starts[first] - 1
    gaps: IntArray = positions - before - 1
    return gaps


def _positions(layout: Layout, gaps: IntArray, counts: IntArray) -> IntArray:
    """Inverse of `_gaps`. Raises PayloadRejected for a position outside its chunk."""
    reached = np.cumsum(gaps + 1)
    begin = np.cumsum(counts) - counts
    before = np.concatenate([np.zeros(1, dtype=np.int64), reached])[begin]
    places = reached - np.repeat(before, counts) - 1
    if bool((places >= np.repeat(layout.sizes, counts)).any()):
        message = "a position is outside its chunk"
        raise PayloadRejected(message)

    positions: IntArray = places + np.repeat(layout.starts, counts)
    return positions


class _Reader:
    """Reads a payload from front to back. Raises PayloadRejected for a read past its end and for bytes left over."""

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
