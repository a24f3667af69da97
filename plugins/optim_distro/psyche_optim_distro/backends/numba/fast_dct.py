"""The matrices of both transforms, taken apart by their symmetry: the same sums with a third of the products.

Column k of the inverse Q (and of any basis of cosines) is symmetric for even k and antisymmetric for odd k: Q[n - 1 - i, k] =
(-1)**k Q[i, k]. So the upper half of Q x is e + o and the lower, from the end, e - o, where e comes from even and o from odd k.
The even columns of a Q of even size are, in their upper half, a Q of half the size with the same symmetry, and so on inwards (a
decomposition as old as the fast cosine transform: Chen, Smith and Fralick 1977). Forwards the rows are folded first: sums with
their mirror images go to even, differences to odd k. All sums of the integer inverse are of some terms of one row of Q, so the
bound of `integer_idct` holds for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.backends.numba.matrix_kernels import LANES, Floats, Integers, round_up_to_4, pack_4x4
from psyche_optim_distro.integer_idct import integer_basis, operand_bits
from psyche_optim_distro.transform import dct_basis

SMALLEST = 4
"""Rows of a matrix that is worth a pass of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class InverseBasis:
    """One chunk side's Q.

    bits: of an operand. rows: float32 [size, size padded to LANES]; row k is what a coefficient k adds to a row of values, 1 for
    a size of 1. levels: int64 [parts, 3], from the innermost outwards: rows once this part is added; padded size of its matrix;
    step between the terms it takes, which begin at half a step, for the innermost at 0. matrices: float32, one after the other,
    `pack_4x4`.
    """

    bits: int
    rows: Floats
    levels: Integers
    matrices: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ForwardBasis:
    """One chunk side's DCT.

    rows: float32 [size, size padded to LANES]; row k is what a coefficient k is worth along a row or column. blocks: int64
    [parts, 2], from the innermost outwards: first row of the folded values that a part takes, and of the coefficients it gives;
    padded size of its matrix. matrices: float32, one after the other, `pack_4x4`. order: int64 [size], which coefficient stands
    in each row.
    """

    rows: Floats
    blocks: Integers
    matrices: Floats
    order: Integers


def inverse_basis(size: int) -> InverseBasis:
    """Q of a size of at least 1."""
    whole = integer_basis(size).numpy() if size > 1 else np.ones((1, 1), np.int64)
    parts = _parts(size)
    matrices = [whole[:rows, ::step] if innermost else whole[: rows // 2, step // 2 :: step] for rows, step, innermost in parts]
    levels = [(rows, _padded(matrix), step) for (rows, step, _), matrix in zip(parts, matrices, strict=True)]
    flat = np.concatenate([pack_4x4(matrix) for matrix in matrices])
    return InverseBasis(operand_bits(size), _rows(whole), np.array(levels, np.int64), flat)


def forward_basis(size: int) -> ForwardBasis:
    """The orthonormal DCT-II of a size of at least 1."""
    whole = dct_basis(size).numpy()
    blocks, matrices, order = [], [], []
    for rows, step, innermost in _parts(size):
        start = 0 if innermost else rows // 2
        frequencies = np.arange(0, size, step) if innermost else np.arange(step // 2, size, step)
        places = np.arange(rows) if innermost else np.arange(start)[::-1]  # what was folded lies mirrored
        matrix = whole[np.ix_(places, frequencies)].T
        matrices.append(pack_4x4(matrix))
        blocks.append((start, _padded(matrix)))
        order.append(frequencies)
    return ForwardBasis(_rows(whole), np.array(blocks, np.int64), np.concatenate(matrices), np.concatenate(order))


def _parts(size: int) -> list[tuple[int, int, bool]]:
    """From the innermost outwards: rows once the part is there, step between its frequencies, whether it is the innermost."""
    parts, step = [], 1
    while size % 2 == 0 and size // 2 >= SMALLEST:
        parts.append((size, 2 * step, False))
        size, step = size // 2, 2 * step
    return [(size, step, True), *reversed(parts)]


def _rows(whole: NDArray[Any]) -> Floats:
    size = whole.shape[0]
    rows = np.zeros((size, -(-size // LANES) * LANES), np.float32)
    rows[:, :size] = whole.T
    return rows


def _padded(matrix: NDArray[Any]) -> int:
    return round_up_to_4(matrix.shape[0])
