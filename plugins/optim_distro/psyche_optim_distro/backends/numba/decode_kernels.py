"""Kernels that read votes from a payload's bits: all of a class when it is checked, and chunk by chunk when votes are counted.

Golomb-Rice codes have no fixed length, so a reader needs to know where to begin. `index_votes` checks a class and notes that place
for every few chunks; the other kernels trust what it has checked. Places are in bits from the begin of an array of little-endian
words, so that a payload needs no copies of its fields. `codec` describes the fields, and says what is wrong with an invalid one.

An array of words ends with at least two words of zeros, since a field is read in windows of 64 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.backends.numba.jit import jit, trailing_zeros

Words = NDArray[np.uint64]

CODE, LOW, SIGN, RICE, WINDOW, COUNTS, SHORT = range(7)
"""Columns of a reader's state: the bit where the next code begins, that of its low bits and that of its sign; the Rice parameter;
of how many votes a window holds the low bits; the row of its counts; and up to how many votes of a chunk a window holds all codes."""

STATE_COLUMNS = 8
"""Of which one is unused: the state of one payload is one line of a cache."""

ALL_CHUNKS = 2**64 - 1
"""In the column COUNTS: every chunk has the largest number of votes, so there are no counts."""

_ONE, _SIX, _LAST, _WORD = np.uint64(1), np.uint64(6), np.uint64(63), np.uint64(64)
_ALL_CHUNKS = np.uint64(ALL_CHUNKS)


@jit
def window(words: Words, at: np.uint64) -> np.uint64:
    """Return the 64 bits from bit `at` on."""
    word, shift = at >> _SIX, at & _LAST
    return (words[word] >> shift) | ((words[word + _ONE] << _ONE) << (_LAST - shift))


@jit
def index_votes(
    words: Words,
    low: int,
    rice: int,
    unary: int,
    unary_bytes: int,
    counts: NDArray[np.int64],
    size: int,
    marked: NDArray[np.int64],
    marks: NDArray[np.int64],
) -> bool:
    """Check the codes of a class, and note where those of some chunks begin.

    low, unary: first bits of these fields. rice: Rice parameter. unary_bytes: length of the field. counts: coefficients of each
    chunk. size: elements of a chunk. marked: int64 [n], ascending, chunks to note. marks: int64 [n, 2], is set to the bit where
    the chunk's first code begins, and the number of the class's coefficients before it. Returns False, with undefined `marks`, for
    bytes that no encoder writes.
    """
    stop = np.uint64(unary) + np.uint64(8 * unary_bytes)
    wide, largest = np.uint64(rice), np.uint64(size)
    mask = (_ONE << wide) - _ONE
    place, begin = np.uint64(low), np.uint64(unary)
    number = begin >> _SIX
    word = words[number] >> (begin & _LAST) << (begin & _LAST)
    base = number << _SIX
    coefficients, noted = 0, 0
    for chunk in range(counts.size):
        if noted < marked.size and marked[noted] == chunk:
            marks[noted, 0], marks[noted, 1] = np.int64(begin), coefficients
            noted += 1
        position = np.uint64(0)
        for _ in range(counts[chunk]):
            while word == 0:
                number += _ONE
                base += _WORD
                if base >= stop:
                    return False

                word = words[number]
            end = base + trailing_zeros(word)
            word &= word - _ONE
            position += ((end - begin) << wide) + (window(words, place) & mask)
            if end >= stop or position >= largest:
                return False

            begin = end + _ONE
            place += wide
            position += _ONE
        coefficients += counts[chunk]
    if coefficients == 0:
        return unary_bytes == 0

    if (stop - begin) >= np.uint64(8):  # a byte without a code
        return False

    rest = stop - base  # at most 64, as fields begin with a byte
    return (word << (_WORD - rest)) == 0 if rest < _WORD else word == 0


@jit
def read_votes(words: Words, low: int, rice: int, unary: int, sign: int, counts: NDArray[np.uint16], out: NDArray[Any]) -> None:
    """Read the votes of a class that `index_votes` has checked.

    low, unary, sign: first bits of these fields. out: [sum of counts], 2 * (position in the chunk) + (1 for -1, else 0).
    """
    wide = np.uint64(rice)
    mask = (_ONE << wide) - _ONE
    place, begin, flag = np.uint64(low), np.uint64(unary), np.uint64(sign)
    number = begin >> _SIX
    word = words[number] >> (begin & _LAST) << (begin & _LAST)
    vote = 0
    for chunk in range(counts.size):
        position = np.uint64(0)
        for _ in range(counts[chunk]):
            while word == 0:
                number += _ONE
                word = words[number]
            end = (number << _SIX) + trailing_zeros(word)
            word &= word - _ONE
            position += ((end - begin) << wide) + (window(words, place) & mask)
            out[vote] = (position << _ONE) | (window(words, flag) & _ONE)
            begin = end + _ONE
            place += wide
            flag += _ONE
            position += _ONE
            vote += 1


@jit
def read_bits(
    words: Words,
    state: NDArray[np.uint64],
    counts: NDArray[np.uint16],
    chunk: int,
    topk: int,
    out: NDArray[Any],
    filled: NDArray[np.int64],
) -> None:
    """Read the votes of some chunks from all payloads.

    words: of all payloads. state: [payloads, STATE_COLUMNS], where to read; is moved on. counts: [payloads without ALL_CHUNKS,
    chunks]. chunk: the first one, of `counts`. topk: the largest number of votes of a payload in a chunk. out: [chunks, votes],
    each row gets the votes of a chunk as `read_votes` writes them. filled: int64 [chunks], how many there are in each row; is added
    to.

    With many payloads much of an update's time is spent here. So some chunks of a payload are read at once, from adjacent bytes,
    and fields are read once for as many votes as a word holds: usually a whole chunk's.
    """
    for payload in range(state.shape[0]):
        own = state[payload]
        row, wide, in_window, short = own[COUNTS], own[RICE], np.int64(own[WINDOW]), np.int64(own[SHORT])
        mask = (_ONE << wide) - _ONE
        begin, place, flag = own[CODE], own[LOW], own[SIGN]
        for one in range(filled.size):
            left = topk if row == _ALL_CHUNKS else np.int64(counts[row, chunk + one])
            to = np.uint64(filled[one])
            filled[one] += left
            position = np.uint64(0)
            if left <= short:
                codes, low, signs = window(words, begin), window(words, place), window(words, flag)
                place += np.uint64(left) * wide
                flag += np.uint64(left)
                after = np.uint64(0)
                for _ in range(left):
                    end = trailing_zeros(codes)
                    codes &= codes - _ONE
                    position += ((end - after) << wide) + (low & mask)
                    after = end + _ONE
                    out[one, to] = (position << _ONE) | (signs & _ONE)
                    to += _ONE
                    low >>= wide
                    signs >>= _ONE
                    position += _ONE
                begin += after
                continue

            number = begin >> _SIX
            word = words[number] >> (begin & _LAST) << (begin & _LAST)
            while left > 0:
                taken = min(left, in_window)
                left -= taken
                low, signs = window(words, place), window(words, flag)
                place += np.uint64(taken) * wide
                flag += np.uint64(taken)
                for _ in range(taken):
                    while word == 0:
                        number += _ONE
                        word = words[number]
                    end = (number << _SIX) + trailing_zeros(word)
                    word &= word - _ONE
                    position += ((end - begin) << wide) + (low & mask)
                    begin = end + _ONE
                    out[one, to] = (position << _ONE) | (signs & _ONE)
                    to += _ONE
                    low >>= wide
                    signs >>= _ONE
                    position += _ONE
        own[CODE], own[LOW], own[SIGN] = begin, place, flag
