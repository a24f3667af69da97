"""Factors the matrices of both transforms by their symmetry: the same sums with a third of the products.

Column k of the inverse Q (and of any cosine basis) is symmetric for even k and antisymmetric for odd k: Q[n - 1 - i, k] =
(-1)**k Q[i, k]. So the upper half of Q x is e + o, and the lower half, from the end, is e - o, where e comes from even k and o
from odd k. For even size, the upper half of the even columns of Q is a Q of half the size with the same symmetry, and so on
recursively. Source: the fast cosine transform of Chen, Smith and Fralick, 1977.

The forward transform folds the rows first: sums with their mirror images give even k, differences give odd k. Each sum of the
integer inverse is a sum of some terms of one row of Q, so the bound of `integer_idct` holds for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.backends.numba.matrix_kernels import LANES, Floats, Integers, pack_4x4, round_up_to_4
from psyche_optim_distro.chunks.transform import dct_basis
from psyche_optim_distro.direction.integer_idct import integer_basis, operand_bits

MIN_ROWS = 4
"""Smallest half of a matrix, in rows, for which a further factorisation saves time."""


@dataclass(frozen=True, slots=True, eq=False)
class InverseBasis:
    """Factored Q of one chunk side.

    bits: of an operand, see `operand_bits`. rows: float32 [size, size padded to LANES]; row k is the contribution of coefficient
    k to a row of values (1 for size 1). levels: int64 [parts, 3], innermost part first: number of rows after this part is added;
    padded size of its matrix; step between its terms, which begin at half a step, or at 0 for the innermost part. matrices:
    float32, the parts' matrices one after the other, each packed by `pack_4x4`.
    """

    bits: int
    rows: Floats
    levels: Integers
    matrices: Floats

    @property
    def arrays(self) -> tuple[Floats, Integers, Floats]:
        """The arrays, for the kernels."""
        return self.rows, self.levels, self.matrices


@dataclass(frozen=True, slots=True, eq=False)
class ForwardBasis:
    """Factored DCT matrix of one chunk side.

    rows: float32 [size, size padded to LANES]; row k is the contribution of coefficient k along a row or column. blocks: int64
    [parts, 2], innermost part first: first row of the folded values that a part reads, which is also the first row of the
    coefficients it writes; padded size of its matrix. matrices: float32, the parts' matrices one after the other, each packed by
    `pack_4x4`. order: int64 [size], the coefficient in each row of the result.
    """

    rows: Floats
    blocks: Integers
    matrices: Floats
    order: Integers


def inverse_basis(size: int) -> InverseBasis:
    """Return the factored Q. size: at least 1."""
    whole = integer_basis(size).numpy() if size > 1 else np.ones((1, 1), np.int64)
    parts = _parts(size)
    matrices = [whole[:rows, ::step] if innermost else whole[: rows // 2, step // 2 :: step] for rows, step, innermost in parts]
    levels = [(rows, _padded(matrix), step) for (rows, step, _), matrix in zip(parts, matrices, strict=True)]
    flat = np.concatenate([pack_4x4(matrix) for matrix in matrices])
    return InverseBasis(operand_bits(size), _rows(whole), np.array(levels, np.int64), flat)


def forward_basis(size: int) -> ForwardBasis:
    """Return the factored orthonormal DCT-II. size: at least 1."""
    whole = dct_basis(size).numpy()
    blocks, matrices, order = [], [], []
    for rows, step, innermost in _parts(size):
        start = 0 if innermost else rows // 2
        frequencies = np.arange(0, size, step) if innermost else np.arange(step // 2, size, step)
        places = np.arange(rows) if innermost else np.arange(start)[::-1]  # folding leaves rows in mirrored order
        matrix = whole[np.ix_(places, frequencies)].T
        matrices.append(pack_4x4(matrix))
        blocks.append((start, _padded(matrix)))
        order.append(frequencies)
    return ForwardBasis(_rows(whole), np.array(blocks, np.int64), np.concatenate(matrices), np.concatenate(order))


def _parts(size: int) -> list[tuple[int, int, bool]]:
    """Return for each part, innermost first: rows after adding it, step between its frequencies, whether it is innermost."""
    parts, step = [], 1
    while size % 2 == 0 and size // 2 >= MIN_ROWS:
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
