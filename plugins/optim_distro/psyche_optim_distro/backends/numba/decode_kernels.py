"""Kernels that read votes from a payload's bits: all of a class when it is checked, and chunk by chunk when votes are counted.

Golomb-Rice codes have no fixed length, so a reader needs to know where to begin. `index_votes` checks a class and notes where
that is for every few chunks; the other kernels trust what it has checked. `codec` describes the fields, and says what is wrong
with an invalid one.

`index_votes` and `read_votes` read an array of little-endian words, which ends with at least two words of zeros, since a field is
read in windows of 64 bits. `read_lanes` and `read_bits` read many payloads where they lie, so that nobody copies them: their
places are bits from address 0, and none reads a word that has no byte of its payload.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.backends.numba.jit import jit, prefetch, trailing_zeros, word_at
from psyche_optim_distro.backends.numba.matrix_kernels import LANES

Words = NDArray[np.uint64]

CODE, LOW, SIGN, RICE, COUNTS, LAST, WINDOW = range(7)
"""What a reader has: the bit where the next code begins, that of its low bits and that of its sign; the Rice parameter; the row
of its counts; the last word of its payload; and of how many votes a window holds the low bits."""

READER_COLUMNS = 8
"""Of which one is unused: the reader of one payload is one line of a cache."""

LANE_FIELDS = 6
"""Rows of a block of readers that say where to read: CODE to LAST."""

LANE_ROWS = LANE_FIELDS + 6
"""Rows of a block of readers, with those for `read_lanes` itself."""

ALL_CHUNKS = 2**64 - 1
"""In the column COUNTS: every chunk has the largest number of votes, so there are no counts."""

_ONE, _SIX, _LAST, _WORD = np.uint64(1), np.uint64(6), np.uint64(63), np.uint64(64)
_LINE = np.uint64(8)  # words of a line of a cache
_ALL_CHUNKS, _ZERO = np.uint64(ALL_CHUNKS), np.uint64(0)

# Where the rows of a block begin, see `read_lanes`.
_BLOCK = np.uint64(LANE_ROWS * LANES)
_CODE, _LOW, _SIGN, _RICE, _COUNTS, _LAST_WORD = (np.uint64(row * LANES) for row in range(LANE_FIELDS))
_CODES, _LOWS, _SIGNS, _POSITION, _AFTER, _LEFT = (np.uint64(row * LANES) for row in range(LANE_FIELDS, LANE_ROWS))


@jit
def window(words: Words, at: np.uint64) -> np.uint64:
    """Return the 64 bits from bit `at` on."""
    word, shift = at >> _SIX, at & _LAST
    bits: np.uint64 = (words[word] >> shift) | ((words[word + _ONE] << _ONE) << (_LAST - shift))
    return bits


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
    the chunk's first code begins, and the number of the class's coefficients before it. Returns False, with undefined `marks`,
    for bytes that no encoder writes.
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
    ends_with_zeros: bool = (word << (_WORD - rest)) == 0 if rest < _WORD else word == 0
    return ends_with_zeros


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
def read_lanes(
    blocks: NDArray[np.uint64],
    payloads: int,
    together: int,
    counts: NDArray[np.uint16],
    chunk: int,
    topk: int,
    nothing: int,
    out: NDArray[Any],
) -> np.int64:
    """Read the votes of one chunk from many payloads, whose readers do the same step at the same time, in vector registers.

    blocks: flat, LANES readers to a block of LANE_ROWS rows; readers after the last payload are zeros. The first rows say where
    to read, and are moved to the next chunk. payloads: number of readers. together: of how many votes each reader's windows are
    sure to hold codes, low bits and signs. counts: [payloads without ALL_CHUNKS, chunks]. chunk: of `counts`. topk: the most
    votes of a payload in a chunk. nothing: is written in place of a vote that a payload lacks. out: gets the votes as
    `read_votes` writes them, and up to LANES - 1 elements after them are changed. Returns their number, payloads * topk.

    The windows are read here and not by `_window_at`, since a call per coefficient costs more than the reading
    (`matrix_kernels`). Each chunk needs lines of three fields of each payload, in other places each time: the next ones are asked
    for in advance.
    """
    number, none = np.uint64(blocks.size) // _BLOCK, np.uint64(nothing)
    for reader in range(np.uint64(payloads)):
        at = (reader >> _SIX) * _BLOCK + (reader & _LAST)
        row = blocks[at + _COUNTS]
        blocks[at + _LEFT] = np.uint64(topk) if row == _ALL_CHUNKS else np.uint64(counts[row, chunk])
        blocks[at + _POSITION] = _ZERO
    done, to = 0, _ZERO
    while done < topk:
        taken = min(together, topk - done)
        for reader in range(np.uint64(payloads)):
            at = (reader >> _SIX) * _BLOCK + (reader & _LAST)
            last = blocks[at + _LAST_WORD]
            begin = blocks[at + _CODE]
            word, shift = min(begin >> _SIX, last), begin & _LAST
            blocks[at + _CODES] = (word_at(word) >> shift) | ((word_at(min(word + _ONE, last)) << _ONE) << (_LAST - shift))
            prefetch(word + _LINE)
            begin = blocks[at + _LOW]
            word, shift = min(begin >> _SIX, last), begin & _LAST
            blocks[at + _LOWS] = (word_at(word) >> shift) | ((word_at(min(word + _ONE, last)) << _ONE) << (_LAST - shift))
            prefetch(word + _LINE)
            begin = blocks[at + _SIGN]
            word, shift = min(begin >> _SIX, last), begin & _LAST
            blocks[at + _SIGNS] = (word_at(word) >> shift) | ((word_at(min(word + _ONE, last)) << _ONE) << (_LAST - shift))
            prefetch(word + _LINE)
            blocks[at + _AFTER] = _ZERO
        for vote in range(done, done + taken):
            for block in range(number):
                at, first = block * _BLOCK, to + block * _WORD
                for lane in range(_WORD):
                    codes, low, signs = blocks[at + _CODES + lane], blocks[at + _LOWS + lane], blocks[at + _SIGNS + lane]
                    wide, after, position = blocks[at + _RICE + lane], blocks[at + _AFTER + lane], blocks[at + _POSITION + lane]
                    has_it = np.uint64(vote) < blocks[at + _LEFT + lane]
                    end = trailing_zeros(codes)
                    position += ((end - after) << wide) + (low & ((_ONE << wide) - _ONE))
                    out[first + lane] = (position << _ONE) | (signs & _ONE) if has_it else none
                    blocks[at + _CODES + lane] = codes & (codes - _ONE)
                    blocks[at + _LOWS + lane] = low >> wide
                    blocks[at + _SIGNS + lane] = signs >> _ONE
                    blocks[at + _POSITION + lane] = position + _ONE
                    blocks[at + _AFTER + lane] = end + _ONE if has_it else after
            to += np.uint64(payloads)
        for block in range(number):
            at = block * _BLOCK
            for lane in range(_WORD):
                left = blocks[at + _LEFT + lane]
                read = min(max(left, np.uint64(done)) - np.uint64(done), np.uint64(taken))
                blocks[at + _CODE + lane] += blocks[at + _AFTER + lane]
                blocks[at + _LOW + lane] += read * blocks[at + _RICE + lane]
                blocks[at + _SIGN + lane] += read
        done += taken
    return np.int64(to)


@jit
def _window_at(at: np.uint64, last: np.uint64) -> np.uint64:
    """Return the 64 bits from bit `at` of the memory on. Those after the word `last` are undefined."""
    word, shift = min(at >> _SIX, last), at & _LAST
    bits: np.uint64 = (word_at(word) >> shift) | ((word_at(min(word + _ONE, last)) << _ONE) << (_LAST - shift))
    return bits


@jit
def read_bits(
    readers: NDArray[np.uint64],
    counts: NDArray[np.uint16],
    chunk: int,
    topk: int,
    out: NDArray[Any],
    first: np.int64,
) -> np.int64:
    """Read the votes of one chunk from payloads whose windows may hold the codes of too few votes for `read_lanes`.

    readers: [payloads, READER_COLUMNS], where to read; they are moved to the next chunk. first: where to begin writing to `out`.
    The other arguments are those of `read_lanes`. Returns where the votes end.
    """
    to = np.uint64(first)
    for reader in range(readers.shape[0]):
        row, wide, in_window = readers[reader, COUNTS], readers[reader, RICE], np.int64(readers[reader, WINDOW])
        mask = (_ONE << wide) - _ONE
        begin, place, flag = readers[reader, CODE], readers[reader, LOW], readers[reader, SIGN]
        last = readers[reader, LAST]
        number = min(begin >> _SIX, last)
        word = word_at(number) >> (begin & _LAST) << (begin & _LAST)
        left = np.int64(topk) if row == _ALL_CHUNKS else np.int64(counts[row, chunk])
        position = _ZERO
        while left > 0:
            taken = min(left, in_window)
            left -= taken
            low, signs = _window_at(place, last), _window_at(flag, last)
            place += np.uint64(taken) * wide
            flag += np.uint64(taken)
            for _ in range(taken):
                while word == 0:
                    number += _ONE
                    word = word_at(number)
                end = (number << _SIX) + trailing_zeros(word)
                word &= word - _ONE
                position += ((end - begin) << wide) + (low & mask)
                begin = end + _ONE
                out[to] = (position << _ONE) | (signs & _ONE)
                to += _ONE
                low >>= wide
                signs >>= _ONE
                position += _ONE
        readers[reader, CODE], readers[reader, LOW], readers[reader, SIGN] = begin, place, flag
    return np.int64(to)
