"""Everything that is compiled, in one file, since numba keeps machine code by the file it came from.

Arrays are numpy's, C-contiguous. A chunk's values lie in *tiles* of LANES columns, [tiles * tall rows, LANES], where `tall` rows
leave room for zeros that a product rounded up to fours reads. Numba wraps negative indices around, so loops that should become
vector instructions run from zero over slices; and it counts references at each call, so calls are made per chunk, never per vote.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.compiled.compiler import compiled, exact

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

LANES = 64
"""Columns that are worked on at once: four vectors of the widest processors, and the usual width of a chunk."""

PANEL = 16
"""Chunks that lie side by side and are written to memory together, row by row: 4 KiB of each row where they are 64 wide."""

_ONE_SENDER = np.int32(1 << 10)
_ONE_BIT, _SIXTEEN, _HALF = np.int32(1), np.int32(16), np.int32(0x7FFF)
_UPPER, _MAGNITUDE = np.int32(-0x10000), np.int32(0x7FFFFFFF)
_FLOAT_ONE = np.int32(127 << 23)
_ROUND = np.float32(3 << 22)
"""Added and taken off again it rounds float32 values of magnitude <= 2**22 to integers, half to even."""

_BIT_OF = np.zeros(64, dtype=np.int64)
_BIT_OF[[(0x03F79D71B4CB0A89 << bit & 0xFFFFFFFFFFFFFFFF) >> 58 for bit in range(64)]] = np.arange(64)
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_ONE, _TO_TABLE, _WORD = np.uint64(1), np.uint64(58), np.uint64(64)


# ------------------------------------------------------------------------------------------------------------ reading a payload


@compiled
def read_votes(
    low: NDArray[np.uint64],
    rice: int,
    unary: NDArray[np.uint64],
    unary_bytes: int,
    signs: NDArray[np.uint64],
    counts: NDArray[np.uint16],
    size: int,
    out: NDArray[Any],
) -> bool:
    """Golomb-Rice coded positions and signs of the chunks of one class into `out` [sum of counts]: twice the position in its
    chunk, and one more for -1. False, with anything in `out`, where the bytes are not what an encoder writes.

    low, unary, signs: the payload's bytes as words, zeros behind them: at least one word more than is needed.
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


# ------------------------------------------------------------------------------------------------------ from votes to the weights


@compiled
def move_group(
    first: int,
    last: int,
    votes: NDArray[Any],
    starts: Integers,
    counts: NDArray[np.uint16],
    position: int,
    means: Floats,
    height: int,
    columns: int,
    width: int,
    bits: int,
    row_basis: Floats,
    levels: Integers,
    matrices: Floats,
    masters: Floats,
    keep: np.float32,
    rate: np.float32,
) -> None:
    """Masters <- masters keep - rate sign(inverse of the mean votes) in the chunks first to last - 1 of a group.

    votes: of all payloads, as `read_votes` wrote them, each in the order of classes; starts: where each payload's begin. counts:
    [payloads, chunks] in the order of classes, where the group's chunks are position, position + 1, ... means: by count and sum,
    see `mean_of_votes`. bits: of the operands of the second stage. row_basis: [width, padded width], what a coefficient of each
    column adds to a row. levels, matrices: see `bases`, of `height`. masters: the group's part.
    """
    payloads, across = starts.size, columns // width
    tiles, tall = (width + LANES - 1) // LANES, 2 * height + 8
    cursors = np.empty(payloads, dtype=np.int64)
    for payload in range(payloads):
        cursors[payload] = starts[payload] + counts[payload, : position + first].sum()
    sums = np.zeros(height * width, dtype=np.int32)
    places = np.empty(height * width + 1, dtype=np.int32)
    stage = np.zeros((tiles * tall, LANES), dtype=np.float32)
    stage_bits = stage.view(np.int32)
    found = np.zeros((tall, LANES), dtype=np.float32)
    odd = np.empty((height + 4, LANES), dtype=np.float32)
    directions = np.empty((height, PANEL * width), dtype=np.int8)
    waiting, corner = 0, 0
    for chunk in range(first, last):
        voted = _count(votes, cursors, counts, position + chunk, sums, places)
        _clear(stage, tiles, tall, height)
        _add_rows(stage, tiles, tall, voted, places, sums, means, width, row_basis)
        if height > 1 and width > 1:
            _rescale(stage, stage_bits, tiles, tall, height, bits)
        column = chunk % across
        if waiting == 0:
            corner = chunk // across * height * columns + column * width
        for tile in range(tiles):
            place = waiting * width + tile * LANES
            wide = min(LANES, width - tile * LANES)
            if height > 1:
                _inverse(levels, matrices, stage, tile * tall, odd, found)
                _keep_signs(found, 0, height, directions, place, wide)
            else:
                _keep_signs(stage, tile * tall, 1, directions, place, wide)
        waiting += 1
        if waiting == PANEL or column + 1 == across or chunk + 1 == last:
            _move(masters, corner, columns, directions, height, waiting * width, keep, rate)
            waiting = 0


@compiled
def _count(
    votes: NDArray[Any],
    cursors: Integers,
    counts: NDArray[np.uint16],
    chunk: int,
    sums: NDArray[np.int32],
    places: NDArray[np.int32],
) -> int:
    """Count one chunk's votes: 2**10 for each vote of a place, and the votes, into zeros in `sums`. Returns how many places."""
    voted = 0
    for payload in range(cursors.size):
        begin = cursors[payload]
        end = begin + counts[payload, chunk]
        cursors[payload] = end
        for number in range(begin, end):
            vote = np.int64(votes[number])
            place = vote >> 1
            before = sums[place]
            places[voted] = place  # written anyway: whether it is new cannot be foreseen by a processor
            voted += before == 0
            sums[place] = before + _ONE_SENDER + np.int32(1 - 2 * (vote & 1))
    return voted


@compiled
def _clear(stage: Floats, tiles: int, tall: int, height: int) -> None:
    for tile in range(tiles):
        for row in range(tile * tall, tile * tall + height):
            for lane in range(LANES):
                stage[row, lane] = 0


@exact
def _add_rows(
    stage: Floats,
    tiles: int,
    tall: int,
    voted: int,
    places: NDArray[np.int32],
    sums: NDArray[np.int32],
    means: Floats,
    width: int,
    row_basis: Floats,
) -> None:
    """First stage: each voted place's mean times its column's basis to its row; most places of a chunk have no votes."""
    for number in range(voted):
        place = places[number]
        mean = means[sums[place]]
        sums[place] = 0
        row = np.int64(np.uint32(place) // np.uint32(width))
        column = place - row * width
        for tile in range(tiles):
            at, begin = tile * tall + row, tile * LANES
            for lane in range(LANES):
                stage[at, lane] += mean * row_basis[column, begin + lane]


@compiled
def _rescale(stage: Floats, stage_bits: NDArray[np.int32], tiles: int, tall: int, height: int, bits: int) -> None:
    """To bfloat16, half to even, times a power of two of the chunk's own, to integers, half to even: see `integer_inverse`."""
    peak = np.int32(0)
    for tile in range(tiles):
        for row in range(tile * tall, tile * tall + height):
            for lane in range(LANES):
                value = stage_bits[row, lane]
                value = (value + _HALF + ((value >> _SIXTEEN) & _ONE_BIT)) & _UPPER
                stage_bits[row, lane] = value
                peak = max(peak, value & _MAGNITUDE)
    if peak < _FLOAT_ONE:  # a chunk of zeros
        peak = _FLOAT_ONE
    scale = np.int32((bits + 126 + 127 - np.int64(peak >> 23)) << 23).view(np.float32)
    for tile in range(tiles):
        for row in range(tile * tall, tile * tall + height):
            for lane in range(LANES):
                stage[row, lane] = (stage[row, lane] * scale + _ROUND) - _ROUND


@exact
def _inverse(levels: Integers, matrices: Floats, source: Floats, begin: int, odd: Floats, found: Floats) -> None:
    """Second stage, of one tile: `found` = Q @ source[begin:], from the innermost even part outwards. See `bases`."""
    at = levels[0, 1] * levels[0, 1]
    _product(matrices, 0, levels[0, 1], source, begin, levels[0, 2], found)
    for level in range(1, levels.shape[0]):
        size, padded, step = levels[level, 0], levels[level, 1], levels[level, 2]
        _product(matrices, at, padded, source, begin + step // 2, step, odd)
        at += padded * padded
        for row in range(size // 2):
            mirrored = size - 1 - row
            for lane in range(LANES):
                from_even, from_odd = found[row, lane], odd[row, lane]
                found[row, lane] = from_even + from_odd
                found[mirrored, lane] = from_even - from_odd


@exact
def _product(matrices: Floats, at: int, size: int, source: Floats, begin: int, step: int, out: Floats) -> None:
    """out[i] = sum over j of matrix[i, j] source[begin + j step]; the matrix [size, size] at `at`, its size a multiple of four.

    Four rows and four terms at once: what is read of `source` and `out` serves sixteen products.
    """
    for row in range(0, size, 4):
        for lane in range(LANES):
            out[row, lane] = out[row + 1, lane] = out[row + 2, lane] = out[row + 3, lane] = 0
        for term in range(0, size, 4):
            place = at + row * size + term
            a0, a1, a2, a3 = matrices[place], matrices[place + 1], matrices[place + 2], matrices[place + 3]
            place += size
            b0, b1, b2, b3 = matrices[place], matrices[place + 1], matrices[place + 2], matrices[place + 3]
            place += size
            c0, c1, c2, c3 = matrices[place], matrices[place + 1], matrices[place + 2], matrices[place + 3]
            place += size
            d0, d1, d2, d3 = matrices[place], matrices[place + 1], matrices[place + 2], matrices[place + 3]
            r0 = begin + term * step
            r1, r2, r3 = r0 + step, r0 + 2 * step, r0 + 3 * step
            for lane in range(LANES):
                w, x, y, z = source[r0, lane], source[r1, lane], source[r2, lane], source[r3, lane]
                out[row, lane] += a0 * w + a1 * x + a2 * y + a3 * z
                out[row + 1, lane] += b0 * w + b1 * x + b2 * y + b3 * z
                out[row + 2, lane] += c0 * w + c1 * x + c2 * y + c3 * z
                out[row + 3, lane] += d0 * w + d1 * x + d2 * y + d3 * z


@compiled
def _keep_signs(values: Floats, begin: int, rows: int, directions: NDArray[np.int8], place: int, wide: int) -> None:
    """The signs of a tile's first `wide` columns into directions[:rows, place : place + wide]."""
    for row in range(rows):
        own, out = values[begin + row], directions[row, place : place + wide]
        if wide == LANES:
            for lane in range(LANES):
                out[lane] = np.int8(own[lane] > 0) - np.int8(own[lane] < 0)
        else:
            for lane in range(wide):
                out[lane] = np.int8(own[lane] > 0) - np.int8(own[lane] < 0)


@compiled
def _move(
    masters: Floats,
    corner: int,
    columns: int,
    directions: NDArray[np.int8],
    rows: int,
    wide: int,
    keep: np.float32,
    rate: np.float32,
) -> None:
    """Masters <- masters keep - rate direction in chunks side by side; two roundings, as torch's two calls have."""
    for row in range(rows):
        begin = corner + row * columns
        own, direction = masters[begin : begin + wide], directions[row]
        for column in range(wide):
            own[column] = own[column] * keep - rate * np.float32(direction[column])
