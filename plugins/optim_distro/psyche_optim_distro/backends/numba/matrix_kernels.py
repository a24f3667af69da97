"""What the compiled transforms share: how a chunk lies in memory, and a product of a matrix and its rows.

A chunk's values lie in *panels* of LANES columns, [panels * rows, LANES] float32, with a few rows more than it has, since sides are
rounded up to round_up_to_4. Arrays are numpy's, C-contiguous. Numba wraps negative indices around, so loops that should become vector
instructions run from zero over slices; and it counts references at each call, so calls are made per chunk, never per coefficient.

Numba keeps machine code by the file of the function that was called from Python: who changes this file has to remove what is kept
of `moving` and `finding` (`__pycache__/*.nbi`). The tests do so themselves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.backends.numba.jit import jit_fma

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

LANES = 64
"""Columns that are worked on at once: four vectors of the widest processors, and the usual width of a chunk."""

CHUNK_BATCH = 16
"""Chunks that lie side by side and are read or written together, row by row: 4 KiB of each row where they are 64 wide."""

MAGNITUDE = np.int32(0x7FFFFFFF)
"""The bits of a float32 without its sign, ordered as magnitudes are, NaN above all."""

_1, _2, _3, _4 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)


@jit_fma
def round_up_to_4(size: int) -> int:
    """Rounded up to a multiple of four."""
    return (size + 3) // 4 * 4


@jit_fma
def matmul(
    matrices: Floats, at: int, rows: int, terms: int, source: Floats, begin: int, step: int, out: Floats, to: int
) -> None:
    """out[to + i] = sum over j of matrix[i, j] source[begin + j step]; the matrix `pack_4x4` at `at`, sides multiples of four.

    Four rows and four terms at once: what is read of `source` and `out` serves sixteen products. Unsigned indices, since each
    that may be negative costs a comparison.
    """
    place, first, apart = np.uint64(at), np.uint64(to), np.uint64(step)
    for row in range(0, rows, 4):
        i0 = first + np.uint64(row)
        i1, i2, i3 = i0 + _1, i0 + _2, i0 + _3
        for lane in range(LANES):
            out[i0, lane] = out[i1, lane] = out[i2, lane] = out[i3, lane] = 0
        j0 = np.uint64(begin)
        for _ in range(0, terms, 4):
            a0, a1, a2, a3 = matrices[place], matrices[place + _1], matrices[place + _2], matrices[place + _3]
            place += _4
            b0, b1, b2, b3 = matrices[place], matrices[place + _1], matrices[place + _2], matrices[place + _3]
            place += _4
            c0, c1, c2, c3 = matrices[place], matrices[place + _1], matrices[place + _2], matrices[place + _3]
            place += _4
            d0, d1, d2, d3 = matrices[place], matrices[place + _1], matrices[place + _2], matrices[place + _3]
            place += _4
            j1 = j0 + apart
            j2 = j1 + apart
            j3 = j2 + apart
            for lane in range(LANES):
                w, x, y, z = source[j0, lane], source[j1, lane], source[j2, lane], source[j3, lane]
                out[i0, lane] += a0 * w + a1 * x + a2 * y + a3 * z
                out[i1, lane] += b0 * w + b1 * x + b2 * y + b3 * z
                out[i2, lane] += c0 * w + c1 * x + c2 * y + c3 * z
                out[i3, lane] += d0 * w + d1 * x + d2 * y + d3 * z
            j0 = j3 + apart


def pack_4x4(matrix: NDArray[np.generic]) -> Floats:
    """A matrix [rows, terms] with zeros up to multiples of four, in squares of four by four, as `matmul` goes through it."""
    rows, terms = (-(-side // 4) for side in matrix.shape)
    padded = np.zeros((4 * rows, 4 * terms), np.float32)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded.reshape(rows, 4, terms, 4).transpose(0, 2, 1, 3).reshape(-1)
