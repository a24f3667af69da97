"""The memory layout of a chunk in the kernels, and a matrix product for it.

A chunk is stored in *panels* of LANES columns: float32 [panels * rows, LANES], with a few rows more than the chunk has, since
sides are rounded up to multiples of four. Arrays are numpy's, C-contiguous. Numba wraps negative indices around, so loops that
should be vectorised run from zero over slices. Numba counts references at each call, so calls are made per chunk, never per
coefficient.

Numba caches machine code by the file of the function that Python calls. After a change to this file, `jit` or `decode_kernels`,
remove the cached code of `update_kernels`, `clip_kernels` and `compress_kernels` (`__pycache__/*.nbi`). The tests do so
themselves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.backends.numba.jit import jit_fma

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

LANES = 64
"""Columns of a panel: four vector registers of the widest processors, and the usual width of a chunk."""

CHUNK_BATCH = 16
"""Adjacent chunks that are read or written together, row by row: 4 KiB of each row if they are 64 wide."""

MAGNITUDE = np.int32(0x7FFFFFFF)
"""Mask that removes the sign bit of a float32. As integers the results have the order of the magnitudes; NaN is largest."""

_1, _2, _3, _4 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)


@jit_fma
def round_up_to_4(size: int) -> int:
    """Return `size` rounded up to a multiple of four."""
    return (size + 3) // 4 * 4


@jit_fma
def matmul(matrices: Floats, at: int, rows: int, terms: int, source: Floats, begin: int, step: int, out: Floats, to: int) -> None:
    """out[to + i] = sum over j of matrix[i, j] source[begin + j step], for one panel.

    matrices: flat; the matrix [rows, terms] begins at `at`, in the order of `pack_4x4`; both sides are multiples of four.
    Four rows and four terms are processed at once, so each read of `source` and `out` serves sixteen products. Indices are
    unsigned, since an index that may be negative costs a comparison.
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
    """Pack a matrix [rows, terms], padded with zeros to multiples of four, in 4 x 4 blocks in the order that `matmul` reads."""
    rows, terms = (-(-side // 4) for side in matrix.shape)
    padded = np.zeros((4 * rows, 4 * terms), np.float32)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded.reshape(rows, 4, terms, 4).transpose(0, 2, 1, 3).reshape(-1)
