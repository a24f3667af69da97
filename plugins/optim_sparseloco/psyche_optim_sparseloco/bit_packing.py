"""Packs fixed-width integers and unary codes into bytes. Bit i of a string is bit i % 8 of byte i // 8.

Readers check that padding bits are zero, so each sequence of values has exactly one encoding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from psyche_core.errors import PayloadRejected
from psyche_optim_sparseloco.layout import IntArray


def packed_bytes(count: int, width: int) -> int:
    """Size in bytes of `count` integers of `width` bits."""
    return (count * width + 7) // 8


def pack_integers(values: IntArray, width: int) -> bytes:
    """Pack integers 0 <= value < 2**width <= 2**32, lowest bit first."""
    bits = np.unpackbits(values.astype("<u4").view(np.uint8), bitorder="little").reshape(-1, 32)
    return np.packbits(bits[:, :width], bitorder="little").tobytes()


def unpack_integers(data: bytes, count: int, width: int) -> NDArray[np.uint32]:
    """Inverse of `pack_integers`: [count]. `data` must have `packed_bytes(count, width)` bytes.

    Raises PayloadRejected if padding is not zero.
    """
    if not width:
        return np.zeros(count, dtype=np.uint32)

    used = count * width
    if used % 8 and data[-1] >> used % 8:
        message = "padding bits of a packed table are not zero"
        raise PayloadRejected(message)

    rows = np.frombuffer(data + bytes(-len(data) % width), dtype=np.uint8).reshape(-1, width)  # eight integers a row
    values = np.empty((rows.shape[0], 8), dtype=np.uint32)
    for column in range(8):
        first, shift = divmod(column * width, 8)
        bits = np.zeros(rows.shape[0], dtype=np.uint64)
        for number in range((shift + width + 7) // 8):
            bits |= rows[:, first + number].astype(np.uint64) << np.uint64(8 * number)
        values[:, column] = (bits >> np.uint64(shift)) & np.uint64((1 << width) - 1)
    return values.reshape(-1)[:count]


def pack_unary(values: IntArray) -> bytes:
    """Pack each value n >= 0 as n zero bits and a one."""
    if not values.size:
        return b""

    ends = np.cumsum(values + 1) - 1
    bits = np.zeros(int(ends[-1]) + 1, dtype=np.uint8)
    bits[ends] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def unpack_unary(data: bytes, count: int) -> IntArray:
    """Inverse of `pack_unary`: int64 [count]. Raises PayloadRejected unless there are `count` codes and no unused byte."""
    ends = np.flatnonzero(np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little"))
    if ends.size != count or (count and int(ends[-1]) // 8 != len(data) - 1) or (not count and data):
        message = f"a unary table of {len(data)} bytes holds {ends.size} codes, expected {count} and no spare byte"
        raise PayloadRejected(message)

    return np.diff(ends, prepend=-1) - 1
