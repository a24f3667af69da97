"""Chunks of a tensor and their orthonormal DCT-II, by matrix products over whole groups of tensors.

Shapes, here and in the other modules: a tensor [..., R, C] (1-D: R = 1) is cut into blocks of `height` x `width`, where height
divides R and width divides C. It is kept in its natural row-major layout and seen as [row_blocks, height, columns]: then both
products of the transform are plain batched matmuls and nothing is permuted; coefficients stand where their block stands.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor


def chunk_size(length: int, target: int) -> int:
    """The largest divisor of `length` that is not above `target` (0 for an empty dimension). Reference: modeling 1.3."""
    best = min(length, 1)
    for divisor in range(1, math.isqrt(length) + 1):
        if length % divisor == 0:
            for candidate in (divisor, length // divisor):
                if best < candidate <= target:
                    best = candidate

    return best


@lru_cache(maxsize=64)
def dct_basis(size: int) -> Tensor:
    """Forward matrix F [size, size] of the orthonormal DCT-II in float64: coefficients = signal @ F, signal = coefficients @ F.T.

    F[i, k] = c_k cos(pi (2i + 1) k / 2n) with c_0 = sqrt(1/n), c_k = sqrt(2/n) otherwise.
    """
    position = torch.arange(size, dtype=torch.float64).unsqueeze(1)
    frequency = torch.arange(size, dtype=torch.float64).unsqueeze(0)
    basis = torch.cos(math.pi * (2 * position + 1) * frequency / (2 * size)) * math.sqrt(2 / size)
    basis[:, 0] = math.sqrt(1 / size)
    return basis


def encode(signal: Tensor, basis_height: Tensor, basis_width: Tensor) -> Tensor:
    """Coefficients F(height).T @ block @ F(width) of every block of `signal` [row_blocks, height, columns], same layout."""
    height, width = basis_height.shape[0], basis_width.shape[0]
    if height > 1:
        signal = torch.matmul(basis_height.T, signal)
    if width > 1:
        signal = (signal.reshape(-1, width) @ basis_width).view(signal.shape)
    return signal


def decode(coefficients: Tensor, basis_height: Tensor, basis_width: Tensor) -> Tensor:
    """The inverse of `encode`: F(height) @ block @ F(width).T of every block of [row_blocks, height, columns]."""
    height, width = basis_height.shape[0], basis_width.shape[0]
    if width > 1:
        coefficients = (coefficients.reshape(-1, width) @ basis_width.T).view(coefficients.shape)
    if height > 1:
        coefficients = torch.matmul(basis_height, coefficients)
    return coefficients


def add_decoded(
    natural: Tensor, indices: Tensor, values: Tensor, basis_height: Tensor, basis_width: Tensor, *, factor: float
) -> None:
    """Add factor times the `decode` of a few coefficients to `natural` [row_blocks, height, columns], in place.

    indices: int64 row-by-row positions inside each block, values: float, both [chunks, keep]; a value of zero adds nothing.
    A block that gets k coefficients is a sum of k outer products, which is a product of [height, k] and [k, width].
    """
    height, width = basis_height.shape[0], basis_width.shape[0]
    row_blocks, _, columns = natural.shape
    blocks = natural.view(row_blocks, height, columns // width, width)
    if values.shape[1] * 4 <= width:
        rows = basis_height.T[indices // width] * (factor * values).unsqueeze(2)  # [chunks, keep, height]
        found = torch.bmm(rows.transpose(1, 2), basis_width.T[indices % width])  # [chunks, height, width]
        blocks.add_(found.view(row_blocks, columns // width, height, width).transpose(1, 2))
        return

    dense = natural.new_zeros(values.shape[0], height * width).scatter_(1, indices, factor * values)
    spread = dense.view(row_blocks, columns // width, height, width).transpose(1, 2).reshape(natural.shape)
    natural.add_(decode(spread, basis_height, basis_width))


def chunk_rows(natural: Tensor, width: int) -> Tensor:
    """Blocks as rows: [row_blocks, height, columns] to [row_blocks * columns / width, height * width] (a copy if it must be)."""
    row_blocks, height, columns = natural.shape
    blocks = natural.view(row_blocks, height, columns // width, width).transpose(1, 2)  # [row_blocks, col_blocks, height, width]
    return blocks.reshape(-1, height * width)
