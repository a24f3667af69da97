"""Kernels that count votes, transform the means and update the masters, chunk by chunk in a core's first-level cache.

Sums and products are of integers below 2**24, see `integer_idct`. The weights are rounded as torch rounds them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.backends.numba.jit import jit, jit_fma
from psyche_optim_distro.backends.numba.matrix_kernels import CHUNK_BATCH, LANES, MAGNITUDE, Floats, Integers, matmul

_ONE_SENDER = np.int32(1 << 10)
_ONE_BIT, _SIXTEEN, _HALF = np.int32(1), np.int32(16), np.int32(0x7FFF)
_UPPER, _FLOAT_ONE = np.int32(-0x10000), np.int32(127 << 23)
_ROUND = np.float32(3 << 22)
"""Adding and subtracting this rounds float32 values of magnitude <= 2**22 to integers, half to even."""


@jit
def update_group(
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
    decays: Floats,
    steps: Floats,
) -> None:
    """Masters <- masters decay - step sign(inverse of the mean votes) in the chunks first to last - 1 of a group.

    votes: of all payloads, as `decode_votes` writes them, each in the order of classes. starts: int64 [payloads], begin of each
    payload's votes. counts: [payloads, chunks] in the order of classes. position: of the group's first chunk in that order.
    means: by count and sum, see `mean_of_votes`. height, columns, width: of the group. bits: of the operands of the second stage.
    row_basis: `InverseBasis.rows` of the width. levels, matrices: of `InverseBasis` of the height. masters: the group's part.
    decays, steps: the two factors of each row of blocks.
    """
    payloads, across = starts.size, columns // width
    panels, tall = (width + LANES - 1) // LANES, 2 * height + 8
    cursors = np.empty(payloads, dtype=np.int64)
    for payload in range(payloads):
        cursors[payload] = starts[payload] + counts[payload, : position + first].sum()
    sums = np.zeros(height * width, dtype=np.int32)
    places = np.empty(height * width + 1, dtype=np.int32)
    stage = np.zeros((panels * tall, LANES), dtype=np.float32)
    stage_bits = stage.view(np.int32)
    found = np.zeros((tall, LANES), dtype=np.float32)
    odd = np.empty((height + 4, LANES), dtype=np.float32)
    directions = np.empty((height, CHUNK_BATCH * width), dtype=np.int8)
    waiting, corner = 0, 0
    for chunk in range(first, last):
        voted = count_votes(votes, cursors, counts, position + chunk, sums, places)
        clear(stage, panels, tall, height)
        add_rows(stage, panels, tall, voted, places, sums, means, width, row_basis)
        if height > 1 and width > 1:
            rescale(stage, stage_bits, panels, tall, height, bits)
        column = chunk % across
        if waiting == 0:
            corner = chunk // across * height * columns + column * width
        for panel in range(panels):
            place = waiting * width + panel * LANES
            wide = min(LANES, width - panel * LANES)
            if height > 1:
                inverse(levels, matrices, stage, panel * tall, odd, found)
                _store_signs(found, 0, height, directions, place, wide)
            else:
                _store_signs(stage, panel * tall, 1, directions, place, wide)
        waiting += 1
        if waiting == CHUNK_BATCH or column + 1 == across or chunk + 1 == last:
            row = chunk // across  # of the waiting chunks, too: they are side by side
            _apply_direction(masters, corner, columns, directions, height, waiting * width, decays[row], steps[row])
            waiting = 0


@jit
def count_votes(
    votes: NDArray[Any],
    cursors: Integers,
    counts: NDArray[np.uint16],
    chunk: int,
    sums: NDArray[np.int32],
    places: NDArray[np.int32],
) -> int:
    """Count one chunk's votes: adds 2**10 + vote per vote to zeros in `sums`. Returns the number of different positions."""
    voted = 0
    for payload in range(cursors.size):
        begin = cursors[payload]
        end = begin + counts[payload, chunk]
        cursors[payload] = end
        for number in range(begin, end):
            vote = np.int64(votes[number])
            place = vote >> 1
            before = sums[place]
            places[voted] = place  # written without a branch, which the processor could not predict
            voted += before == 0
            sums[place] = before + _ONE_SENDER + np.int32(1 - 2 * (vote & 1))
    return voted


@jit
def clear(stage: Floats, panels: int, tall: int, height: int) -> None:
    """Set the first `height` rows of every panel to zero."""
    for panel in range(panels):
        for row in range(panel * tall, panel * tall + height):
            for lane in range(LANES):
                stage[row, lane] = 0


@jit_fma
def add_rows(
    stage: Floats,
    panels: int,
    tall: int,
    voted: int,
    places: NDArray[np.int32],
    sums: NDArray[np.int32],
    means: Floats,
    width: int,
    row_basis: Floats,
) -> None:
    """First stage: add each voted position's mean times its column's basis to its row. Most positions have no votes."""
    for number in range(voted):
        place = places[number]
        mean = means[sums[place]]
        sums[place] = 0
        row = np.int64(np.uint32(place) // np.uint32(width))
        column = place - row * width
        for panel in range(panels):
            at, begin = panel * tall + row, panel * LANES
            for lane in range(LANES):
                stage[at, lane] += mean * row_basis[column, begin + lane]


@jit
def rescale(stage: Floats, stage_bits: NDArray[np.int32], panels: int, tall: int, height: int, bits: int) -> None:
    """Round to bfloat16, scale by the chunk's power of two, and round to integers; always half to even. See `integer_idct`."""
    peak = np.int32(0)
    for panel in range(panels):
        for row in range(panel * tall, panel * tall + height):
            for lane in range(LANES):
                value = stage_bits[row, lane]
                value = (value + _HALF + ((value >> _SIXTEEN) & _ONE_BIT)) & _UPPER
                stage_bits[row, lane] = value
                peak = max(peak, value & MAGNITUDE)
    if peak < _FLOAT_ONE:  # a chunk of zeros
        peak = _FLOAT_ONE
    scale = np.int32((bits + 126 + 127 - np.int64(peak >> 23)) << 23).view(np.float32)
    for panel in range(panels):
        for row in range(panel * tall, panel * tall + height):
            for lane in range(LANES):
                stage[row, lane] = (stage[row, lane] * scale + _ROUND) - _ROUND


@jit_fma
def inverse(levels: Integers, matrices: Floats, source: Floats, begin: int, odd: Floats, found: Floats) -> None:
    """Second stage, of one panel: `found` = Q @ source[begin:], innermost even part first. See `fast_dct`."""
    at = levels[0, 1] * levels[0, 1]
    matmul(matrices, 0, levels[0, 1], levels[0, 1], source, begin, levels[0, 2], found, 0)
    for level in range(1, levels.shape[0]):
        size, padded, step = levels[level, 0], levels[level, 1], levels[level, 2]
        matmul(matrices, at, padded, padded, source, begin + step // 2, step, odd, 0)
        at += padded * padded
        for row in range(size // 2):
            mirrored = size - 1 - row
            for lane in range(LANES):
                from_even, from_odd = found[row, lane], odd[row, lane]
                found[row, lane] = from_even + from_odd
                found[mirrored, lane] = from_even - from_odd


@jit
def _store_signs(values: Floats, begin: int, rows: int, directions: NDArray[np.int8], place: int, wide: int) -> None:
    """Write the signs of a panel's first `wide` columns to directions[:rows, place : place + wide]."""
    for row in range(rows):
        own, out = values[begin + row], directions[row, place : place + wide]
        if wide == LANES:
            for lane in range(LANES):
                out[lane] = np.int8(own[lane] > 0) - np.int8(own[lane] < 0)
        else:
            for lane in range(wide):
                out[lane] = np.int8(own[lane] > 0) - np.int8(own[lane] < 0)


@jit
def _apply_direction(
    masters: Floats,
    corner: int,
    columns: int,
    directions: NDArray[np.int8],
    rows: int,
    wide: int,
    decay: np.float32,
    step: np.float32,
) -> None:
    """Masters <- masters decay - step direction in adjacent chunks. Two roundings, as in torch's two calls."""
    for row in range(rows):
        begin = corner + row * columns
        own, direction = masters[begin : begin + wide], directions[row]
        for column in range(wide):
            own[column] = own[column] * decay - step * np.float32(direction[column])
