"""Inverse DCT of mean coefficients in integers: equal bits for every device, thread count and order of summation.

The mean per slot is an integer |v| <= 2**b. The inverse DCT uses an integer basis Q = round(126 cos), so |Q| <= 126: 8 bits with
sign. The sign of the result is the direction. Proof that no bit depends on the order of summation, for a stage with
basis Q [n, n] and integer operands of magnitude <= 2**b:

    every product is an integer, and every partial sum, in any order and with or without fused multiply-add, is an integer of
    magnitude <= 2**b * max_i sum_k |Q[i, k]| <= 2**24, where float32 holds all integers.

`operand_bits(n)` is the largest b <= 11 that satisfies this. Between the two stages the sums are rounded to bfloat16 (8
significant bits, half to even). Each chunk is scaled to at most 2**b by a power of two, which depends on the chunk's largest
magnitude only (an exact maximum, independent of order), and rounded to integers, half to even. The scale is dropped, since only
the sign is needed. sign(0) = 0, and rounding preserves the sign of an integer.

So all operands, including Q, have at most 8 significant bits, which bfloat16 can hold. Hardware that multiplies bfloat16 and adds
in float32 gives the same bits as float32, TF32 and integers. bfloat16 products are used on CPUs that have them and whose sums are
exact in a test at the start; float32 elsewhere. 11 bits between the stages would agree with the exact sign in 0.005 % more of the
entries; the rounding of Q itself costs 0.14 %.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from psyche_optim_distro.chunks.layout import Group
from psyche_optim_distro.chunks.precision import cpu_has_bfloat16
from psyche_optim_distro.chunks.tiles import Workspace

BASIS_SCALE = 126
"""It is even, so that cos = ±1/2 (the only rational value besides 0 and ±1) is never half way between two integers. Otherwise the
last bit of a platform's cosine would decide how it is rounded."""

MAX_OPERAND_BITS = 11
EXACT_LIMIT = 2**24


@lru_cache(maxsize=64)
def integer_basis(size: int) -> Tensor:
    """Q [size, size], int64: round(126 cos(pi (2i + 1) k / 2n)), column 0 round(126 / sqrt(2)). A multiple of the DCT basis."""
    angles = [math.pi * step / (2 * size) for step in range(4 * size)]
    cosines = torch.tensor([round(BASIS_SCALE * math.cos(angle)) for angle in angles])
    position = 2 * torch.arange(size).unsqueeze(1) + 1
    basis = cosines[position * torch.arange(size).unsqueeze(0) % (4 * size)]
    basis[:, 0] = round(BASIS_SCALE / math.sqrt(2))
    return basis


@lru_cache(maxsize=64)
def operand_bits(size: int) -> int:
    """Return the largest b <= 11 such that every partial sum of `integer_basis(size)` times operands <= 2**b is at most 2**24."""
    row_sum = int(integer_basis(size).abs().sum(dim=1).max())
    return min(MAX_OPERAND_BITS, (EXACT_LIMIT // row_sum).bit_length() - 1)


@lru_cache(maxsize=64)
def bfloat16_is_exact(size: int) -> bool:
    """Return whether bfloat16 products with Q give the exact sums, rounded, on this machine. Otherwise replicas would diverge.

    Tests operands that give the largest possible sums, and random ones.
    """
    basis = integer_basis(size)
    most = 1 << operand_bits(size)
    generator = torch.Generator().manual_seed(size)
    some = torch.randint(-most, most + 1, (64, size), generator=generator)
    operands = torch.cat([most * basis.sign(), some]).to(torch.bfloat16)
    sums = (operands.to(torch.int64) @ basis.T).to(torch.float32).to(torch.bfloat16)
    from_right = torch.mm(operands, basis.to(torch.bfloat16).T.contiguous())
    from_left = torch.matmul(basis.to(torch.bfloat16), operands.T.contiguous().expand(2, -1, -1))
    return torch.equal(from_right, sums) and all(torch.equal(each.T, sums) for each in from_left)


class IntegerIDCT:
    """Inverse DCT of integer coefficients.

    sizes: all chunk sides. device: where to compute. workspace: scratch memory. products: dtype of the products, bfloat16 or
    float32; None: the faster one that is exact.
    """

    def __init__(
        self, sizes: list[int], device: torch.device, *, workspace: Workspace, products: torch.dtype | None = None
    ) -> None:
        if products is None:
            able = device.type == "cpu" and cpu_has_bfloat16() and all(bfloat16_is_exact(size) for size in sizes)
            products = torch.bfloat16 if able else torch.float32
        self._products = products
        self._basis = {size: integer_basis(size).to(device, products) for size in sizes}
        self._transposed = {size: basis.T.contiguous() for size, basis in self._basis.items()}
        self._workspace = workspace

    def lend_input(self, elements: int) -> Tensor:
        """Return scratch memory for the input of `signs`, bfloat16 [elements]; nothing else here uses it."""
        return self._workspace.lend(0 if self._products == torch.bfloat16 else 3, (elements,), dtype=torch.bfloat16)

    def signs(self, stage: Tensor, tile: Group) -> Tensor:
        """Return the signs of the inverse DCT: float32 [row_blocks, height, columns], valid until the next call.

        stage: integer coefficients of magnitude <= 2**operand_bits, bfloat16, in the tile's shape. tile: the tile of these
        coefficients.
        """
        stage, _ = self._sums(stage, tile)
        found = self._workspace.lend(2, tile.shape).copy_(stage)
        return torch.sign(found, out=found)

    def values(self, stage: Tensor, tile: Group) -> Tensor:
        """Return the inverse DCT with 8 significant bits: float32 [row_blocks, height, columns], valid until the next call.

        Arguments as of `signs`. A coefficient of 2**operand_bits counts as 1. All tiles of a parameter have the same unit, a
        power of two times that of an orthonormal transform of their size. Multiplying by a power of two is exact, so these values
        also have the same bits everywhere.
        """
        stage, exponents = self._sums(stage, tile)
        rounded = stage.to(torch.bfloat16)  # products in bfloat16 are already rounded
        found = self._workspace.lend(2, tile.shape).copy_(rounded)
        unit = min(operand_bits(tile.width), operand_bits(tile.height)) + 7 * ((tile.width > 1) + (tile.height > 1))
        if exponents is None:
            return found.mul_(2.0**-unit)

        power = ((exponents.to(torch.int32) - unit + 127) << 23).view(torch.float32)  # 2**(exponent - unit)
        found.view(tile.row_blocks, tile.height, -1, tile.width).mul_(power[:, None, :, None])
        return found

    def _sums(self, stage: Tensor, tile: Group) -> tuple[Tensor, Tensor | None]:
        """Return the sums of the inverse DCT in the tile's shape, and the exponent of each block's scale; None: 0 for all."""
        exponents = None
        if tile.width > 1:
            operand, sums = self._operand(stage), self._workspace.lend(1, tile.shape, dtype=self._products)
            torch.mm(operand.view(-1, tile.width), self._transposed[tile.width], out=sums.view(-1, tile.width))
            stage = self._rounded(sums)
        if tile.height > 1:
            if tile.width > 1:
                out = self._workspace.lend(2, tile.shape, dtype=torch.bfloat16)
                stage, exponents = rescale(stage, width=tile.width, bits=operand_bits(tile.height), out=out)
            operand, sums = self._operand(stage), self._workspace.lend(1, tile.shape, dtype=self._products)
            stage = torch.matmul(self._basis[tile.height], operand, out=sums)
        return stage, exponents

    def _operand(self, stage: Tensor) -> Tensor:
        """Return integers in the dtype of the products: unchanged, or copied into buffer 0."""
        if self._products == torch.bfloat16:
            return stage

        return self._workspace.lend(0, stage.shape).copy_(stage)

    def _rounded(self, sums: Tensor) -> Tensor:
        """Return the sums rounded to bfloat16: in place, or in buffer 0."""
        if self._products == torch.bfloat16:
            return sums

        return self._workspace.lend(0, sums.shape, dtype=torch.bfloat16).copy_(sums)


def rescale(stage: Tensor, *, width: int, bits: int, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Scale each block of integers by a power of two to magnitude <= 2**bits, and round half to even.

    The power is 2**(bits - e) where 2**(e - 1) <= largest magnitude < 2**e. It is computed from the exponent field of the
    maximum, which no order of evaluation changes. Multiplication by it is exact, so this is the only rounding.
    stage: bfloat16 [row_blocks, height, columns]. width: of a block. out: tensor like `stage` for the result. Also returns
    e - bits of each block, int16 [row_blocks, columns / width].
    """
    row_blocks, height, columns = stage.shape
    blocks = stage.view(row_blocks, height, columns // width, width)
    found = torch.empty_like(stage) if out is None else out
    scaled = found.view(blocks.shape)
    magnitudes = torch.bitwise_and(blocks.view(torch.int16), 0x7FFF, out=scaled.view(torch.int16))  # same order as integers
    peaks = magnitudes.amax(dim=1).amax(dim=2)  # [row_blocks, col_blocks]
    exponent = (peaks >> 7).clamp(min=127)  # biased; an all-zero block counts as peak 1
    exponent -= bits + 126  # the fields are biased by 127, and a peak is in [2**(e - 1), 2**e)
    scale = ((127 - exponent) << 7).view(torch.bfloat16)
    torch.mul(blocks, scale[:, None, :, None], out=scaled).round_()
    return found, exponent
