"""The second stage `orthogonal`: each chunk of a matrix moves along the nearest semi-orthogonal matrix, other tensors by signs.

So all directions within a chunk get about the same step, as in Muon, where the sign gives the same step to all elements. For each
chunk of a matrix, with the decoded mean u [height, width], five Newton-Schulz steps make its singular values about 1:

    X <- u / a power of two, so that the Frobenius norm of X is in [1/2, 1]
    A = X Xᵀ        B = b A + c A A        X <- a X + B X        with (a, b, c) = (441, -611, 260) / 128
    direction = X sqrt(max(height, width))

(X is transposed where it is higher than wide.) The root makes the direction's root mean square about 1, as that of signs is, if
u has full rank. With few coefficients it has not, and the root mean square is smaller. An element may be larger than 1. A factor
of a chunk cancels but for a power of two, so values and signs of senders give directions of the same size. There is no state.

Proof that no bit depends on the order of summation: u is first scaled by a power of two, so that its largest magnitude is in
[2^12, 2^13), and rounded to integers, whose squares sum up to at most 2^46. From then on X, A and B are integers in units of
2^-20, held in float64. Let s be the largest singular value of X. By the inequality of Cauchy and Schwarz any partial sum of an
element of X Xᵀ is at most s² 2^40, of A A at most s⁴ 2^40, and of B X at most |B| s 2^40, where |B| < 2.82 for s <= 1.25. With
the factors 611 and 2^20, 260, 128, or 441 and 2^20, each term and each sum of two is an integer below 2^51, and float64 holds
all integers up to 2^53. So products and sums are exact on all devices, in any order, with or without fused multiply-add.
Rounding to units is half to even, after an exact product with a power of two.

s stays below 1.25: x (a + b x² + c x⁴) is at most 1.204 for x in [0, 1.24], and rounding adds less than 0.01 to the next s. Each
element of X, A and B is rounded by at most 2^-21, which is 2^-11 in the Frobenius norm of a chunk of 1,024 by 1,024; what A and B
were rounded by reaches the next X less than 16 times as large.

What follows are single IEEE operations: the product with the root in float64, and its rounding to float32. A chunk of zeros has
the direction 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from psyche_optim_distro.chunks.layout import Group, Layout
from psyche_optim_distro.chunks.tiles import parts_of

STEPS = 5
_A, _B, _C, _OVER = 441, -611, 260, 128
_UNIT_BITS = 20
_UNIT = 2.0**_UNIT_BITS
_OPERAND_BITS = 13
_ELEMENTS = 2**22
"""Most elements whose chunks are worked on at once: a few buffers of 32 MB."""


class Orthogonal:
    """The second stage `orthogonal` by torch. layout: parameter table. matrices: names of the parameters that it is for."""

    def __init__(self, layout: Layout, matrices: Collection[str]) -> None:
        self._layout = layout
        self._matrices = frozenset(matrices)
        self._parts: dict[int, tuple[tuple[int, int, bool], ...]] = {}

    def begin(self) -> None:
        """Do nothing, because nothing depends on earlier updates."""

    def direction(self, update: Tensor, tile: Group) -> Tensor:
        """Replace a tile's update by its direction, and return it. update: float32 [elements of the tile]."""
        if tile.start not in self._parts:
            parts = parts_of(tile, self._layout)
            self._parts[tile.start] = tuple((part.start, part.stop, part.name in self._matrices) for part in parts)
        for start, stop, is_matrix in self._parts[tile.start]:
            own = update[start - tile.start : stop - tile.start]
            if is_matrix:
                chunks = own.view(-1, tile.height, tile.columns // tile.width, tile.width).transpose(1, 2)
                rows = max(1, _ELEMENTS // (tile.height * tile.columns))
                for first in range(0, len(chunks), rows):
                    some = chunks[first : first + rows]
                    some.copy_(orthogonal(some.reshape(-1, tile.height, tile.width)).view(some.shape))
            else:
                own.sign_()
        return update


def orthogonal(chunks: Tensor) -> Tensor:
    """Return the directions of chunks. chunks: float32 [n, height, width], decoded means; returns the same shape and dtype."""
    height, width = chunks.shape[1:]
    x = _integers(chunks.to(torch.float64))
    if height > width:
        x = x.transpose(1, 2)
    for _ in range(STEPS):
        a = torch.bmm(x, x.transpose(1, 2)).mul_(1 / _UNIT).round_()
        b = torch.bmm(a, a).mul_(_C).add_(a.mul_(_B * _UNIT)).mul_(1 / (_OVER * _UNIT)).round_()
        x = torch.bmm(b, x).mul_(_OVER).add_(x * (_A * _UNIT)).mul_(1 / (_OVER * _UNIT)).round_()
    if height > width:
        x = x.transpose(1, 2)
    # The sign of a zero does depend on the order in which zeros are added: make all of them positive.
    return x.mul(math.sqrt(max(height, width)) / _UNIT).to(torch.float32).add_(0.0)


def _integers(chunks: Tensor) -> Tensor:
    """Scale each chunk by a power of two to a Frobenius norm in [1/2, 1], and round to units, which are integers.

    chunks: float64 [n, height, width].
    """
    _, exponents = torch.frexp(chunks.abs().amax(dim=(1, 2), keepdim=True))
    x = chunks.mul(_power_of_two(_OPERAND_BITS - exponents)).round_()
    _, exponents = torch.frexp(x.square().sum(dim=(1, 2), keepdim=True))
    return x.mul_(_power_of_two(_UNIT_BITS - (exponents + 1).div(2, rounding_mode="floor"))).round_()


def _power_of_two(exponents: Tensor) -> Tensor:
    """2 to these powers, float64, exactly: platforms round powers differently, so the bits are put together."""
    return ((exponents.to(torch.int64) + 1023) << 52).view(torch.float64)
