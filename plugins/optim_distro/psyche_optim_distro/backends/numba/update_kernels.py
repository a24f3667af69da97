"""Kernels that count votes, transform the means and update the masters, chunk by chunk in a core's first-level cache.

Sums and products are of integers below 2**24, see `integer_idct`. The weights are rounded as torch rounds them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.backends.numba.decode_kernels import read_bits, read_lanes
from psyche_optim_distro.backends.numba.jit import TRANSPOSED, jit, jit_fma, transpose_square
from psyche_optim_distro.backends.numba.matrix_kernels import CHUNK_BATCH, LANES, MAGNITUDE, Floats, Integers, matmul

VoteArrays = tuple[
    bool,
    NDArray[np.uint64],
    int,
    int,
    NDArray[np.uint64],
    NDArray[np.uint16],
    NDArray[Any],
    Integers,
]
"""See `gather_votes`."""

BasisArrays = tuple[Floats, Integers, Floats]
"""`rows`, `levels` and `matrices` of an `InverseBasis`."""

Counters = NDArray[np.uint8]
"""Votes for and against each position of a chunk, and of one more, as bytes side by side. As uint16 they are the indices of
`means_of_counts`. A byte stays at 255: of 256 votes on one side none is on the other, so the mean is that of 255."""

DENSE_SHARE = 6
"""A chunk is transformed as a whole if it has a vote for one of this many positions. Measured with 64 by 64."""

_ONE = np.uint64(1)
_ONE_VOTE, _MOST_VOTES = np.uint32(1), np.uint32(255)
_ONE_BIT, _SIXTEEN, _HALF = np.int32(1), np.int32(16), np.int32(0x7FFF)
_UPPER, _FLOAT_ONE = np.int32(-0x10000), np.int32(127 << 23)
_ROUND = np.float32(3 << 22)
"""Adding and subtracting this rounds float32 values of magnitude <= 2**22 to integers, half to even."""


@jit
def update_group(
    first: int,
    last: int,
    votes: VoteArrays,
    position: int,
    topk: int,
    means: Floats,
    height: int,
    columns: int,
    width: int,
    bits: int,
    down: BasisArrays,
    across: BasisArrays,
    masters: Floats,
    decays: Floats,
    steps: Floats,
) -> None:
    """Masters <- masters decay - step sign(inverse of the mean votes) in the chunks first to last - 1 of a group.

    votes: see `gather_votes`. position: of the group's first chunk in the order of classes. topk: the most votes of a payload in
    a chunk. means: see `means_of_counts`. height, columns, width: of the group. bits: of the operands of the second stage. down,
    across: bases of the height and of the width, see `first_stage`. masters: the group's part. decays, steps: the two factors of
    each row of blocks.
    """
    blocks = columns // width
    panels, tall = (width + LANES - 1) // LANES, 2 * height + 8
    counters = np.zeros(2 * height * width + 2, dtype=np.uint8)
    places = np.empty(height * width + 1, dtype=np.int32)
    stage = np.zeros((panels * tall, LANES), dtype=np.float32)
    stage_bits = stage.view(np.int32)
    turned = np.zeros((turned_rows(height, width), LANES), dtype=np.float32)
    found = np.zeros((2 * max(height, width) + 8, LANES), dtype=np.float32)
    odd = np.empty((max(height, width) + 4, LANES), dtype=np.float32)
    directions = np.empty((height, CHUNK_BATCH * width), dtype=np.int8)
    gathered = np.empty(room_for_votes(votes, topk), dtype=votes[6].dtype)
    waiting, corner = 0, 0
    for chunk in range(first, last):
        own = gathered[: gather_votes(votes, position + chunk, topk, 2 * height * width, gathered)]
        first_stage(own, stage, panels, tall, places, counters, means, height, width, across, turned, odd, found)
        if height > 1 and width > 1:
            rescale(stage, stage_bits, panels, tall, height, bits)
        column = chunk % blocks
        if waiting == 0:
            corner = chunk // blocks * height * columns + column * width
        for panel in range(panels):
            place = waiting * width + panel * LANES
            wide = min(LANES, width - panel * LANES)
            if height > 1:
                inverse(down[1], down[2], stage, panel * tall, odd, found)
                _store_signs(found, 0, height, directions, place, wide)
            else:
                _store_signs(stage, panel * tall, 1, directions, place, wide)
        waiting += 1
        if waiting == CHUNK_BATCH or column + 1 == blocks or chunk + 1 == last:
            row = chunk // blocks  # of the waiting chunks, too: they are side by side
            _apply_direction(masters, corner, columns, directions, height, waiting * width, decays[row], steps[row])
            waiting = 0


@jit
def room_for_votes(votes: VoteArrays, topk: int) -> int:
    """Return how many elements `gather_votes` may write."""
    as_bits, _, payloads, _, readers, _, _, cursors = votes
    return (payloads + readers.shape[0] if as_bits else cursors.size) * topk + LANES


@jit
def gather_votes(votes: VoteArrays, chunk: int, topk: int, nothing: int, out: NDArray[Any]) -> np.int64:
    """Write one chunk's votes of all payloads to `out`, as `read_votes` writes them. Returns their number.

    votes: whether payloads are given as bits; `read_lanes`'s readers, number of them and `together`; `read_bits`'s readers;
    counts: of chunks in the order of classes; of payloads that are not given as bits, all votes and the place of each one's next
    vote. chunk: in the order of classes. nothing: may be written in place of a vote.
    """
    as_bits, blocks, payloads, together, readers, counts, every, cursors = votes
    if as_bits:
        number = read_lanes(blocks, payloads, together, counts, chunk, topk, nothing, out)
        return read_bits(readers, counts, chunk, topk, out, number)

    to = np.int64(0)
    for payload in range(cursors.size):
        begin, own = cursors[payload], np.int64(counts[payload, chunk])
        for vote in range(own):
            out[to + vote] = every[begin + vote]
        cursors[payload] += own
        to += own
    return to


@jit
def count_votes(votes: NDArray[Any], counters: Counters, places: NDArray[np.int32]) -> int:
    """Count one chunk's votes in `counters`, which are zeros. Returns the number of different positions.

    places: the positions with votes are written there. The last position stands for no vote, and is not among them.
    """
    voted = 0
    counters[counters.size - 1] = 1  # not zero, so that it is never listed
    for number in range(votes.size):
        vote = np.uint64(votes[number])
        before = np.uint32(counters[vote])
        places[voted] = vote >> _ONE  # written without a branch, which the processor could not predict
        voted += (before | counters[vote ^ _ONE]) == 0
        counters[vote] = min(before + _ONE_VOTE, _MOST_VOTES)
    return voted


@jit
def count_many(votes: NDArray[Any], counters: Counters) -> None:
    """Like `count_votes`, without a list of the positions."""
    for number in range(votes.size):
        vote = np.uint64(votes[number])
        counters[vote] = min(np.uint32(counters[vote]) + _ONE_VOTE, _MOST_VOTES)


@jit
def turned_rows(height: int, width: int) -> int:
    """Return how many rows of LANES floats `first_stage` needs for `turned`: the chunk on its side."""
    return (height + LANES - 1) // LANES * (2 * width + 8)


@jit
def first_stage(
    votes: NDArray[Any],
    stage: Floats,
    panels: int,
    tall: int,
    places: NDArray[np.int32],
    counters: Counters,
    means: Floats,
    height: int,
    width: int,
    across: BasisArrays,
    turned: Floats,
    odd: Floats,
    found: Floats,
) -> None:
    """Count a chunk's votes, and transform their means along its rows. counters: zeros, before and after.

    across: of the width: `InverseBasis.rows`, `levels` and `matrices`. places, turned, odd, found: scratch memory, see
    `turned_rows`. Few positions are added one by one. With a vote for each sixth position, which 86 senders of 8 coefficients of
    4096 have, it takes less time to transform the whole chunk by the factored matrix, on its side, since that matrix takes LANES
    columns at once. The sums are the same integers.
    """
    rows, levels, matrices = across
    stacks = (height + LANES - 1) // LANES
    pairs = counters.view(np.uint16)
    if width == 1 or min(votes.size, height * width) * DENSE_SHARE < stacks * LANES * width:
        voted = count_votes(votes, counters, places)
        clear(stage, panels, tall, height)
        add_rows(stage, panels, tall, voted, places, pairs, means, width, rows)
        return

    count_many(votes, counters)
    stacked = 2 * width + 8
    turn_means(turned, stacked, pairs, means, height, width)
    for stack in range(stacks):
        inverse(levels, matrices, turned, stack * stacked, odd, found)
        turn_back(found, stage, tall, stack * LANES, min(height, stack * LANES + LANES), width)


@jit
def turn_means(turned: Floats, stacked: int, pairs: NDArray[np.uint16], means: Floats, height: int, width: int) -> None:
    """Write the mean of every position to `turned`, whose rows are a chunk's columns. Clears `pairs`."""
    step = np.uint64(width)
    for first in range(0, height, LANES):
        for column in range(width):
            own, place = turned[first // LANES * stacked + column], np.uint64(first * width + column)
            for lane in range(min(LANES, height - first)):
                own[lane] = means[pairs[place]]
                place += step
    for number in range(height * width):
        pairs[number] = 0


@jit
def turn_back(found: Floats, stage: Floats, tall: int, first: int, last: int, width: int) -> None:
    """Write found[column, row - first] to the rows first to last - 1 of all panels of `stage`.

    With squares in registers this takes a third of the time that it takes element by element.
    """
    source, out, step = found.reshape(-1), stage.reshape(-1), np.uint64(LANES)
    rows = last - first
    square_rows = rows // TRANSPOSED * TRANSPOSED
    for panel in range((width + LANES - 1) // LANES):
        begin, at = panel * LANES, panel * tall + first
        wide = min(LANES, width - begin)
        square_columns = wide // TRANSPOSED * TRANSPOSED
        for row in range(0, square_rows, TRANSPOSED):
            for lane in range(0, square_columns, TRANSPOSED):
                number, to = (begin + lane) * LANES + row, (at + row) * LANES + lane
                transpose_square(source, np.uint64(number), step, out, np.uint64(to), step)
        for row in range(rows):
            for lane in range(square_columns if row < square_rows else 0, wide):
                stage[at + row, lane] = found[begin + lane, row]


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
    pairs: NDArray[np.uint16],
    means: Floats,
    width: int,
    row_basis: Floats,
) -> None:
    """Add each voted position's mean times its column's basis to its row. Clears `pairs`."""
    for number in range(voted):
        place = places[number]
        mean = means[pairs[place]]
        pairs[place] = 0
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
