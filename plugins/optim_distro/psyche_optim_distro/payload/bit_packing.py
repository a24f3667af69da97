"""Packs fixed-width integers and unary codes into bytes, vectorised. Bit i of a string is bit i % 8 of byte i // 8.

Readers check that padding bits are zero, so each sequence of values has exactly one encoding.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_core.errors import PayloadRejected
from psyche_optim_distro.chunks.layout import IntArray


def packed_bytes(count: int, width: int) -> int:
    """Return the size in bytes of `count` integers of `width` bits."""
    return (count * width + 7) // 8


def pack_integers(values: IntArray, width: int) -> bytes:
    """Pack integers 0 <= value < 2**width <= 2**64, lowest bit first."""
    if width == 0:
        return b""

    word = _word(width)
    bits = np.unpackbits(values.astype(word).view(np.uint8), bitorder="little").reshape(-1, 8 * word.itemsize)
    return np.packbits(bits[:, :width], bitorder="little").tobytes()


def unpack_integers(data: bytes, count: int, width: int) -> NDArray[np.integer[Any]]:
    """Return the integers [count] that `pack_integers` packed. `data` must have `packed_bytes(count, width)` bytes.

    Raises PayloadRejected if padding is not zero.
    """
    if width == 0:
        return np.zeros(count, dtype=np.int64)
    if width == 1:
        return unpack_flags(data, count)

    _refuse_padding(data, count * width)
    word = next((word for word in _WINDOWS if width + 7 <= 8 * word.itemsize), None)
    if word is None:
        bits = np.zeros((count, 64), dtype=np.uint8)
        bits[:, :width] = _unpack(data)[: count * width].reshape(count, width)
        return np.packbits(bits, bitorder="little").view("<u8").astype(np.int64)

    # Each value lies in a window of a few bytes that begins at the byte of its first bit. Their positions are periodic.
    places, shifts = _pattern(width, word)
    values: NDArray[np.unsignedinteger[Any]]
    if count <= _REPEAT:
        values = _windows(data, len(data), word)[places[:count]] >> shifts[:count]
    else:
        repeats, stride = -(-count // _REPEAT), _REPEAT * width // 8
        values = _windows(data, repeats * stride, word).reshape(repeats, stride).take(places, axis=1)
        values >>= shifts
        values = values.reshape(-1)[:count]
    values &= word.type((1 << width) - 1)
    return values


def unpack_flags(data: bytes, count: int) -> NDArray[np.uint8]:
    """Like `unpack_integers`, for `count` single bits: uint8 [count]. Raises PayloadRejected."""
    _refuse_padding(data, count)
    return np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=count, bitorder="little")


def padding_is_zero(data: bytes, bits: int) -> bool:
    """Return whether the unused bits of the last byte are zero. bits: number of bits in use."""
    return not (bits % 8 and data[-1] >> bits % 8)


def _refuse_padding(data: bytes, bits: int) -> None:
    if not padding_is_zero(data, bits):
        message = "padding bits of a packed table are not zero"
        raise PayloadRejected(message)


_WINDOWS = (np.dtype("<u2"), np.dtype("<u4"), np.dtype("<u8"))
_REPEAT = 4096
"""Number of values after which byte positions and shifts repeat; any multiple of 8 works."""


@lru_cache(maxsize=64)
def _pattern(width: int, word: np.dtype[np.unsignedinteger[Any]]) -> tuple[IntArray, NDArray[np.unsignedinteger[Any]]]:
    """Return, for the first _REPEAT values of this width: byte position, and number of bits before the value in that byte."""
    starts = np.arange(_REPEAT) * width
    return starts >> 3, (starts & 7).astype(word)


def _windows(data: bytes, count: int, word: np.dtype[np.unsignedinteger[Any]]) -> NDArray[np.unsignedinteger[Any]]:
    """Return the words that begin at each of the first `count` bytes, with zeros after the end."""
    padded = data + bytes(count - len(data) + word.itemsize)
    return np.ascontiguousarray(np.ndarray(count, word, padded, strides=(1,)))


def _word(width: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the smallest little-endian unsigned integer type with at least `width` bits."""
    return np.dtype(next(f"<u{size}" for size in (1, 2, 4, 8) if width <= 8 * size))


def pack_unary(values: IntArray) -> bytes:
    """Pack each value n >= 0 as n zero bits and a one."""
    if values.size == 0:
        return b""

    ends = np.cumsum(values + 1) - 1
    bits = np.zeros(int(ends[-1]) + 1, dtype=np.uint8)
    bits[ends] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def unary_ends(data: bytes, count: int) -> IntArray:
    """Return the end position in bits of each code of `pack_unary`, int64 [count]: values 0 to i add up to ends[i] - i.

    Raises PayloadRejected unless there are exactly `count` codes and no unused byte.
    """
    ends: IntArray = np.flatnonzero(_unpack(data).view(np.bool_))
    if ends.size != count or (count and int(ends[-1]) // 8 != len(data) - 1) or (not count and data):
        message = f"a unary table of {len(data)} bytes holds {ends.size} codes, expected {count} and no spare byte"
        raise PayloadRejected(message)

    return ends


def _unpack(data: bytes) -> NDArray[np.uint8]:
    return np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
