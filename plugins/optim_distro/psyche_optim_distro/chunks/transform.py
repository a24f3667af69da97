"""Cuts tensors into chunks and computes their orthonormal DCT-II, by matrix products over many chunks at once.

Shapes, here and in the other modules: a tensor [..., R, C] (1-D: R = 1) is cut into blocks of `height` x `width`, where height
divides R and width divides C. Its natural row-major layout is viewed as [row_blocks, height, columns]; `as_blocks` views the same
memory as blocks. The transforms here take contiguous blocks, [chunks, height, width].
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor


def chunk_size(length: int, target: int) -> int:
    """Return the largest divisor of `length` that is at most `target`; 0 for an empty dimension. As in the reference."""
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


def as_blocks(natural: Tensor, width: int) -> Tensor:
    """Return a view of [row_blocks, height, columns] as [row_blocks, columns / width, height, width]."""
    row_blocks, height, columns = natural.shape
    return natural.view(row_blocks, height, columns // width, width).transpose(1, 2)


def encode(blocks: Tensor, basis_height: Tensor, basis_width: Tensor, *, out: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Return the coefficients F(height).T @ block @ F(width) of blocks [chunks, height, width], in the same shape.

    basis_height, basis_width: `dct_basis` of these sides. out: two contiguous scratch tensors like `blocks`. Returns one of
    them, or `blocks` itself if both sides are 1.
    """
    height, width = basis_height.shape[0], basis_width.shape[0]
    first, second = out or (torch.empty_like(blocks), torch.empty_like(blocks))
    if width > 1:
        torch.mm(blocks.view(-1, width), basis_width, out=first.view(-1, width))
        blocks = first
    if height > 1:
        # Without this copy, torch would copy a transposed bfloat16 view again for every block.
        blocks = torch.matmul(basis_height.T.contiguous(), blocks, out=second)
    return blocks


def decode(coefficients: Tensor, basis_height: Tensor, basis_width: Tensor) -> Tensor:
    """Return the inverse of `encode`: F(height) @ block @ F(width).T of blocks [chunks, height, width], in the same shape."""
    height, width = basis_height.shape[0], basis_width.shape[0]
    if width > 1:
        coefficients = (coefficients.reshape(-1, width) @ basis_width.T).view(coefficients.shape)
    if height > 1:
        coefficients = torch.matmul(basis_height, coefficients)
    return coefficients


def add_decoded(
    blocks: Tensor, indices: Tensor, values: Tensor, basis_height: Tensor, basis_width: Tensor, *, factor: float
) -> None:
    """Add factor times the `decode` of a few coefficients to blocks [chunks, height, width], in place.

    indices: int64, row-by-row positions in each block; values: float; both [chunks, topk]. A value of zero adds nothing.
    The inverse of k coefficients is a sum of k outer products, which is a product of [height, k] and [k, width].
    """
    width = basis_width.shape[0]
    if values.shape[1] * 4 <= width:
        chunks, topk = values.shape
        row, column = (indices // width).view(-1), (indices % width).view(-1)
        rows = basis_height.T.contiguous().index_select(0, row).view(chunks, topk, -1) * values.unsqueeze(2)
        columns = basis_width.T.contiguous().index_select(0, column).view(chunks, topk, -1)
        blocks.baddbmm_(rows.transpose(1, 2), columns, alpha=factor)
        return

    dense = blocks.new_zeros(blocks.shape[0], blocks[0].numel()).scatter_(1, indices, values)
    blocks.add_(decode(dense.view(blocks.shape), basis_height, basis_width), alpha=factor)
