"""The kernel of `update_kernels` with the second stage `clip`, see `psyche_optim_distro.direction.clip`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.backends.numba.jit import jit
from psyche_optim_distro.backends.numba.matrix_kernels import CHUNK_BATCH, LANES, Floats
from psyche_optim_distro.backends.numba.update_kernels import (
    BasisArrays,
    VoteArrays,
    first_stage,
    gather_votes,
    inverse,
    rescale,
    room_for_votes,
    turned_rows,
)

_ONE_BIT, _SIXTEEN, _HALF = np.int32(1), np.int32(16), np.int32(0x7FFF)
_UPPER = np.int32(-0x10000)


@jit
def update_group_clipped(
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
    """Masters <- masters decay - step direction in the chunks first to last - 1 of a group. Arguments as of `update_group`."""
    blocks = columns // width
    panels, tall = (width + LANES - 1) // LANES, 2 * height + 8
    counters = np.zeros(2 * height * width + 2, dtype=np.uint8)
    places = np.empty(height * width + 1, dtype=np.int32)
    stage = np.zeros((panels * tall, LANES), dtype=np.float32)
    stage_bits = stage.view(np.int32)
    turned = np.zeros((turned_rows(height, width), LANES), dtype=np.float32)
    found = np.zeros((2 * max(height, width) + 8, LANES), dtype=np.float32)
    found_bits = found.view(np.int32)
    odd = np.empty((max(height, width) + 4, LANES), dtype=np.float32)
    updates = np.empty((height, CHUNK_BATCH * width), dtype=np.float32)
    update_bits = updates.view(np.int32)
    limits = np.empty(CHUNK_BATCH, dtype=np.float32)
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
        total = np.int64(0)
        for panel in range(panels):
            place = waiting * width + panel * LANES
            wide = min(LANES, width - panel * LANES)
            if height > 1:
                inverse(down[1], down[2], stage, panel * tall, odd, found)
                total += _store(found_bits, 0, height, updates, update_bits, place, wide)
            else:
                total += _store(stage_bits, panel * tall, 1, updates, update_bits, place, wide)
        limits[waiting] = np.float32(2 * np.float64(total) / np.float64(height * width)) if total > 0 else np.float32(1)
        waiting += 1
        if waiting == CHUNK_BATCH or column + 1 == blocks or chunk + 1 == last:
            row = chunk // blocks  # of the waiting chunks, too: they are side by side
            for number in range(waiting):
                begin = number * width
                _apply(masters, corner + begin, columns, updates, begin, height, width, limits[number], decays[row], steps[row])
            waiting = 0


@jit
def _store(
    source: NDArray[np.int32],
    begin: int,
    rows: int,
    updates: Floats,
    update_bits: NDArray[np.int32],
    place: int,
    wide: int,
) -> np.int64:
    """Round a panel's first `wide` columns to bfloat16, half to even, and write them to updates[:rows, place : place + wide].

    source: float32 integers of magnitude <= 2**24, as bits. update_bits: `updates` as bits. Returns the sum of the magnitudes.
    """
    total = np.int64(0)
    for row in range(rows):
        own, out, rounded = source[begin + row], update_bits[row, place : place + wide], updates[row, place : place + wide]
        of_row = np.int32(0)  # of at most 64 integers up to 2**24
        for lane in range(wide):
            out[lane] = (own[lane] + _HALF + ((own[lane] >> _SIXTEEN) & _ONE_BIT)) & _UPPER
        for lane in range(wide):
            of_row += np.int32(abs(rounded[lane]))
        total += np.int64(of_row)
    return total


@jit
def _apply(
    masters: Floats,
    corner: int,
    columns: int,
    updates: Floats,
    place: int,
    rows: int,
    width: int,
    limit: np.float32,
    decay: np.float32,
    step: np.float32,
) -> None:
    """Masters <- masters decay - step (update / limit, clipped) in one chunk. Every operation is rounded, as in torch's calls."""
    one = np.float32(1)
    for row in range(rows):
        begin = corner + row * columns
        own, update = masters[begin : begin + width], updates[row, place : place + width]
        for column in range(width):
            direction = min(max(update[column] / limit, -one), one)
            own[column] = own[column] * decay - step * direction
