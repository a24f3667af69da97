"""Kernel that decodes a payload's bits to votes. It does not report what is wrong with an invalid payload; `codec` does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.backends.numba.jit import jit

_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
"""De Bruijn sequence: its product with each power of two has different upper six bits, which index `_BIT_OF`."""

_BIT_OF = np.zeros(64, dtype=np.int64)
_BIT_OF[[(int(_DE_BRUIJN) << bit & 0xFFFFFFFFFFFFFFFF) >> 58 for bit in range(64)]] = np.arange(64)
_ONE, _TO_TABLE, _WORD = np.uint64(1), np.uint64(58), np.uint64(64)


@jit
def decode_votes(
    low: NDArray[np.uint64],
    rice: int,
    unary: NDArray[np.uint64],
    unary_bytes: int,
    signs: NDArray[np.uint64],
    counts: NDArray[np.uint16],
    size: int,
    out: NDArray[Any],
) -> bool:
    """Decode Golomb-Rice coded positions and signs of the chunks of one class.

    low, unary, signs: the payload's fields (`codec`) as words, followed by zeros: at least one word more than needed. rice: Rice
    parameter. unary_bytes: length of `unary` in bytes. counts: coefficients of each chunk. size: elements of a chunk. out: [sum
    of counts], 2 * (position in the chunk) + (1 for -1, else 0). Returns False, with undefined `out`, for bytes that no encoder
    writes.
    """
    number, word_number, last = 0, 0, -1
    word = unary[0]
    wide = np.uint64(rice)
    mask = (_ONE << wide) - _ONE
    for chunk in range(counts.size):
        position = -1
        for _ in range(counts[chunk]):
            while word == 0:
                word_number += 1
                if word_number * 8 >= unary_bytes:
                    return False

                word = unary[word_number]
            bit = word & (~word + _ONE)
            word ^= bit
            end = word_number * 64 + _BIT_OF[np.int64((bit * _DE_BRUIJN) >> _TO_TABLE)]

            begin = number * rice
            shift = np.uint64(begin & 63)
            bits = low[begin >> 6] >> shift
            if shift:
                bits |= low[(begin >> 6) + 1] << (_WORD - shift)
            position += 1 + ((end - last - 1) << rice) + np.int64(bits & mask)
            last = end
            if position >= size:
                return False

            negative = np.int64((signs[number >> 6] >> np.uint64(number & 63)) & _ONE)
            out[number] = 2 * position + negative
            number += 1
    if word != 0:
        return False

    return last >> 3 == unary_bytes - 1 if number else unary_bytes == 0
