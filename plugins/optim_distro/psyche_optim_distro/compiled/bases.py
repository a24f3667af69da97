"""The integer basis of the inverse transform, taken apart by its symmetry: the same sums with a third of the products.

Column k of Q is symmetric for even k and antisymmetric for odd k: Q[n - 1 - i, k] = (-1)**k Q[i, k]. So the upper half of Q x is
e + o and the lower, from the end, e - o, where e comes from even and o from odd k. The even columns of a Q of even size are, in
their upper half, the Q of half the size with the same symmetry, and so on inwards (a decomposition as old as the fast cosine
transform: Chen, Smith and Fralick 1977). All sums are of some terms of one row, so the bound of `integer_inverse` holds for each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psyche_optim_distro.compiled.kernels import LANES, Floats, Integers
from psyche_optim_distro.integer_inverse import integer_basis, operand_bits

_SMALLEST = 4
"""Rows of a matrix that is worth its own pass; matrices are padded with zeros to multiples of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """One chunk side's Q for the kernels.

    bits: of an operand. rows: float32 [size, size padded to LANES]; row k is what a coefficient k adds to a row of values, 1 for
    a size of 1. levels: int64 [parts, 3], from the innermost outwards: rows once this part is added; padded size of its matrix;
    step between the terms it takes, which begin at half a step, for the innermost at 0. matrices: float32, one after the other.
    """

    bits: int
    rows: Floats
    levels: Integers
    matrices: Floats


def basis_of(size: int) -> Basis:
    """Q of a size of at least 1."""
    whole = integer_basis(size).numpy() if size > 1 else np.ones((1, 1), np.int64)
    rows = np.zeros((size, _padded(size, LANES)), np.float32)
    rows[:, :size] = whole.T
    parts, step = [], 1
    while size % 2 == 0 and size // 2 >= _SMALLEST:
        parts.append((size, 2 * step, whole[: size // 2, step :: 2 * step]))
        size, step = size // 2, 2 * step
    parts.append((size, step, whole[:size, ::step]))
    matrices = [_with_zeros(matrix) for _, _, matrix in reversed(parts)]
    levels = [(size, matrix.shape[0], step) for (size, step, _), matrix in zip(reversed(parts), matrices, strict=True)]
    flat = np.concatenate([matrix.reshape(-1) for matrix in matrices])
    return Basis(operand_bits(whole.shape[0]), rows, np.array(levels, np.int64), flat)


def _with_zeros(matrix: Integers) -> Floats:
    side = _padded(matrix.shape[0], _SMALLEST)
    padded = np.zeros((side, side), np.float32)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
