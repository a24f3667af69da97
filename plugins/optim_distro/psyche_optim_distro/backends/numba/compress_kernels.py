"""Kernels that add gradients to delta and select coefficients. Delta is read and written once.

A chunk stays in a core's first-level cache while it is transformed. All arithmetic is float32. Results are private to a member,
so rounding may differ between processors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.backends.numba.jit import jit, jit_fma
from psyche_optim_distro.backends.numba.matrix_kernels import (
    CHUNK_BATCH,
    LANES,
    MAGNITUDE,
    Floats,
    Integers,
    matmul,
    round_up_to_4,
)

_SIXTEEN = np.uint32(16)
_EPSILON = np.float32(1e-8)  # `preconditioner.EPSILON`


@jit
def compress_group(
    first: int,
    last: int,
    delta: Floats,
    gradient: Floats,
    gradient_bf16: NDArray[np.uint16],
    scale: np.float32,
    decay: np.float32,
    squares: Floats,
    factor: np.float32,
    stays: np.float32,
    enters: np.float32,
    correction: np.float32,
    sent: Integers,
    sent_values: Floats,
    height: int,
    columns: int,
    width: int,
    down: Floats,
    down_blocks: Integers,
    down_matrices: Floats,
    across: Floats,
    across_blocks: Integers,
    across_matrices: Floats,
    down_order: Integers,
    across_order: Integers,
    run: int,
    indices: Integers,
    values: Floats,
) -> None:
    """Compress the chunks first to last - 1 of one parameter: delta <- decay (delta - inverse of sent) + scale d, then top-k.

    d is the gradient or, if there are `squares`, the gradient divided by its root mean square as `_divided` does it.

    delta: the parameter's part, in blocked order. gradient: the parameter's gradient, row by row; empty if it is bfloat16,
    which `gradient_bf16` holds as bits, or if there is none. squares: the parameter's mean squares, row by row, or empty.
    factor, stays, enters, correction: see `_divided`. sent, sent_values: [chunks, n], indices and values to subtract. height,
    columns, width: of the parameter's group. down, across: `ForwardBasis.rows` of height and width; for their blocks,
    matrices and orders see `fast_dct`. run: rows of a run; the first top-k stage looks at the largest of a run only. indices,
    values: output [chunks, topk], ascending by index.
    """
    side_by_side = columns // width
    wide_panels, high_panels = (width + LANES - 1) // LANES, (height + LANES - 1) // LANES
    tall, long = high_panels * LANES + 8, wide_panels * LANES + 8
    rows = max(wide_panels * tall, high_panels * long)
    one, other = np.zeros((rows, LANES), dtype=np.float32), np.zeros((rows, LANES), dtype=np.float32)
    other_bits = other.view(np.int32)
    terms = round_up_to_4(sent.shape[1])
    factors = np.zeros(round_up_to_4(height) * terms, dtype=np.float32)
    sources = np.zeros((wide_panels * terms, LANES), dtype=np.float32)
    peaks = np.zeros((high_panels * ((width + run - 1) // run), LANES), dtype=np.int32)
    found = np.empty(height * width, dtype=np.int64)
    found_bits = np.empty(height * width, dtype=np.int32)
    chunk = first
    while chunk < last:
        column = chunk % side_by_side
        end = min(chunk + CHUNK_BATCH, last, chunk + side_by_side - column)
        if terms:
            for each in range(chunk, end):
                _sparse_factors(sent[each], sent_values[each], terms, down, across, height, width, factors, sources)
                for panel in range(wide_panels):
                    padded = round_up_to_4(height)
                    matmul(factors, 0, padded, terms, sources, panel * terms, 1, other, 0)
                    _subtract(
                        delta, each * height * width + panel * LANES, width, other, height, min(LANES, width - panel * LANES)
                    )
        corner = chunk // side_by_side * height * columns + column * width
        if squares.size:
            _add_divided(
                delta,
                chunk,
                end - chunk,
                gradient,
                gradient_bf16,
                squares,
                corner,
                columns,
                height,
                width,
                scale,
                decay,
                factor,
                stays,
                enters,
                correction,
            )
        else:
            _add_gradient(delta, chunk, end - chunk, gradient, gradient_bf16, corner, columns, height, width, scale, decay)
        for each in range(chunk, end):
            _load_block(delta, each * height * width, height, width, wide_panels, tall, one)
            for panel in range(wide_panels):
                _forward(one, panel * tall, down_blocks, down_matrices, other)
            _transpose(other, tall, height, wide_panels, high_panels, long, one)
            for panel in range(high_panels):
                _forward(one, panel * long, across_blocks, across_matrices, other)
            _top_k(
                other_bits,
                other,
                high_panels,
                long,
                height,
                width,
                run,
                peaks,
                found,
                found_bits,
                down_order,
                across_order,
                indices[each],
                values[each],
            )
        chunk = end


@jit
def _sparse_factors(
    sent: Integers,
    values: Floats,
    terms: int,
    down: Floats,
    across: Floats,
    height: int,
    width: int,
    factors: Floats,
    sources: Floats,
) -> None:
    """Write a chunk's coefficients as a matrix product: factors [height, terms], sources [terms of each panel, LANES]."""
    for term in range(sent.size):
        row, column, value = sent[term] // width, sent[term] % width, values[term]
        begin = term // 4 * 16 + term % 4  # in the order of `pack_4x4`
        for place in range(height):
            factors[place // 4 * 4 * terms + place % 4 * 4 + begin] = down[row, place]
        for panel in range(sources.shape[0] // terms):
            at, begin = panel * terms + term, panel * LANES
            for lane in range(LANES):
                sources[at, lane] = value * across[column, begin + lane]


@jit
def _subtract(delta: Floats, begin: int, width: int, worth: Floats, height: int, wide: int) -> None:
    for row in range(height):
        own = delta[begin + row * width : begin + row * width + wide]
        for lane in range(wide):
            own[lane] -= worth[row, lane]


@jit_fma
def _add_gradient(
    delta: Floats,
    chunk: int,
    count: int,
    gradient: Floats,
    gradient_bf16: NDArray[np.uint16],
    corner: int,
    columns: int,
    height: int,
    width: int,
    scale: np.float32,
    decay: np.float32,
) -> None:
    """Delta <- decay delta + scale g in adjacent chunks, row by row of the gradient."""
    for row in range(height):
        for number in range(count):
            to, begin = ((chunk + number) * height + row) * width, corner + row * columns + number * width
            own = delta[to : to + width]
            if gradient.size:
                part = gradient[begin : begin + width]
                for lane in range(width):
                    own[lane] = own[lane] * decay + scale * part[lane]
            elif gradient_bf16.size:
                half = gradient_bf16[begin : begin + width]
                for lane in range(width):
                    own[lane] = own[lane] * decay + scale * np.uint32(np.uint32(half[lane]) << _SIXTEEN).view(np.float32)
            else:
                for lane in range(width):
                    own[lane] *= decay


@jit_fma
def _add_divided(
    delta: Floats,
    chunk: int,
    count: int,
    gradient: Floats,
    gradient_bf16: NDArray[np.uint16],
    squares: Floats,
    corner: int,
    columns: int,
    height: int,
    width: int,
    scale: np.float32,
    decay: np.float32,
    factor: np.float32,
    stays: np.float32,
    enters: np.float32,
    correction: np.float32,
) -> None:
    """Delta <- decay delta + scale d in adjacent chunks, row by row of the gradient, with d of `_divided`."""
    row_of_gradient = np.zeros(width, dtype=np.float32)
    for row in range(height):
        for number in range(count):
            to, begin = ((chunk + number) * height + row) * width, corner + row * columns + number * width
            own, mean = delta[to : to + width], squares[begin : begin + width]
            if gradient.size:
                _divided(own, gradient[begin : begin + width], mean, scale, decay, factor, stays, enters, correction)
            else:
                if gradient_bf16.size:
                    half = gradient_bf16[begin : begin + width]
                    for lane in range(width):
                        row_of_gradient[lane] = np.uint32(np.uint32(half[lane]) << _SIXTEEN).view(np.float32)
                _divided(own, row_of_gradient, mean, scale, decay, factor, stays, enters, correction)


@jit_fma
def _divided(
    own: Floats,
    gradient: Floats,
    squares: Floats,
    scale: np.float32,
    decay: np.float32,
    factor: np.float32,
    stays: np.float32,
    enters: np.float32,
    correction: np.float32,
) -> None:
    """Update v <- stays v + enters (factor g)²; own <- decay own + scale factor g / (sqrt(correction v) + 1e-8)."""
    for lane in range(own.size):
        scaled = factor * gradient[lane]
        mean = stays * squares[lane] + enters * (scaled * scaled)
        squares[lane] = mean
        own[lane] = own[lane] * decay + scale * (scaled / (np.sqrt(correction * mean) + _EPSILON))


@jit
def _load_block(delta: Floats, begin: int, height: int, width: int, panels: int, tall: int, out: Floats) -> None:
    """Copy a block into panels, with zeros beyond its width."""
    for panel in range(panels):
        wide = min(LANES, width - panel * LANES)
        for row in range(height):
            at = begin + row * width + panel * LANES
            own, to = delta[at : at + wide], out[panel * tall + row]
            for lane in range(wide):
                to[lane] = own[lane]
            for lane in range(wide, LANES):
                to[lane] = 0


@jit_fma
def _forward(source: Floats, begin: int, blocks: Integers, matrices: Floats, out: Floats) -> None:
    """Transform a panel's columns into the same rows of `out`, in the order of `fast_dct`. Folds `source` in place."""
    for number in range(blocks.shape[0] - 1, 0, -1):
        half = blocks[number, 0]
        for row in range(half):
            mirrored = begin + 2 * half - 1 - row
            for lane in range(LANES):
                upper, lower = source[begin + row, lane], source[mirrored, lane]
                source[begin + row, lane] = upper + lower
                source[mirrored, lane] = upper - lower
    at = 0
    for number in range(blocks.shape[0]):  # innermost part first, because each part may write a few rows into the next part's
        start, padded = begin + blocks[number, 0], blocks[number, 1]
        matmul(matrices, at, padded, padded, source, start, 1, out, start)
        at += padded * padded


@jit
def _transpose(source: Floats, tall: int, height: int, wide_panels: int, high_panels: int, long: int, out: Floats) -> None:
    """Transpose whole panels, with zeros beyond the chunk's height. Loops of known length are several times as fast."""
    for across in range(wide_panels):
        for down in range(high_panels):
            begin, to = across * tall + down * LANES, down * long + across * LANES
            rows, columns = source[begin : begin + LANES], out[to : to + LANES]
            for column in range(LANES):
                for row in range(LANES):
                    columns[column, row] = rows[row, column]
                for row in range(height - down * LANES, LANES):
                    columns[column, row] = 0


@jit
def _top_k(
    bits: NDArray[np.int32],
    coefficients: Floats,
    panels: int,
    long: int,
    height: int,
    width: int,
    run: int,
    peaks: NDArray[np.int32],
    found: Integers,
    found_bits: NDArray[np.int32],
    down_order: Integers,
    across_order: Integers,
    indices: Integers,
    values: Floats,
) -> None:
    """Select the coefficients of largest magnitude, which lie in the runs with the largest maxima. NaN counts as largest."""
    runs, topk = (width + run - 1) // run, indices.size
    for panel in range(panels):
        for number in range(runs):
            peak = peaks[panel * runs + number]
            for lane in range(LANES):
                peak[lane] = 0
            for row in range(panel * long + number * run, panel * long + min(width, (number + 1) * run)):
                for lane in range(LANES):
                    peak[lane] = max(peak[lane], bits[row, lane] & MAGNITUDE)
    least = _kth_largest(peaks.reshape(-1), topk, 16)  # a lower bound; few other coefficients are above it
    count = 0
    for panel in range(panels):
        high = min(LANES, height - panel * LANES)
        for number in range(runs):
            for lane in range(high):
                if peaks[panel * runs + number, lane] >= least:
                    for row in range(number * run, min(width, (number + 1) * run)):
                        size = bits[panel * long + row, lane] & MAGNITUDE
                        if size >= least:
                            found_bits[count] = size
                            found[count] = (panel * LANES + lane) << 32 | row
                            count += 1
    least = _kth_largest(found_bits[:count], topk, 0)
    spare = topk
    for number in range(count):
        spare -= found_bits[number] > least
    kept = 0
    for number in range(count):
        size = found_bits[number]
        if size > least or (size == least and spare > 0):
            spare -= size == least
            lane, row = found[number] >> 32, found[number] & 0xFFFFFFFF
            found[kept] = (down_order[lane] * width + across_order[row]) << 32 | (lane // LANES * long + row) << 6 | lane % LANES
            kept += 1
    found[:topk].sort()
    for number in range(topk):
        place = found[number]
        indices[number] = place >> 32
        values[number] = coefficients[(place & 0xFFFFFFFF) >> 6, place & 63]


@jit
def _kth_largest(numbers: NDArray[np.int32], topk: int, lowest: int) -> int:
    """The `topk`-th largest of non-negative numbers, with bits below `lowest` cleared; 0 if there are fewer numbers."""
    least = np.int32(0)
    for bit in range(30, lowest - 1, -1):
        more = least | np.int32(1 << bit)
        reached = np.int32(0)
        for number in range(numbers.size):
            reached = np.int32(reached + (numbers[number] >= more))
        if reached >= topk:
            least = more
    return int(least)
