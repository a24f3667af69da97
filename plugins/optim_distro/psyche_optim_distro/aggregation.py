"""From accepted payloads to the direction of the step, in integers: equal bits on every device, thread count and arrival order.

Per slot, the mean over that slot's senders (votes of ±1, or values) becomes an integer |v| <= V; the inverse DCT runs with an
integer basis Q = round(126 cos) (so |Q| <= 126, 8 bits with sign); the sign of the result is the direction. All integers are
kept in float32 and multiplied by ordinary matmuls. Proof that no bit depends on the order of summation, for a stage with basis
Q [n, n] and integer operands of magnitude <= 2**b:

    every product is an integer, and every partial sum, in any order and with or without fused multiply-add, is an integer of
    magnitude <= 2**b * max_i sum_k |Q[i, k]| <= 2**24, where float32 holds all integers.

`operand_bits(n)` is the largest b that satisfies this, at most 11 (so that TF32, which keeps 11 significant bits, is exact too).
The first stage has |v| <= V = 2**b. Between the stages each chunk is scaled to at most 2**b by a power of two that depends on its
own largest magnitude only (an exact, order-free maximum), and rounded once, half to even. The scale is dropped: only the sign
is wanted, sign(0) = 0. Votes: c senders and a sum s with |s| <= c <= 256 give v = round(V s / c), half away from zero, in int32
(2 * 256 * 2048 + 256 < 2**31).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from psyche_core.errors import PluginError
from psyche_core.types import MAX_CLIENTS
from psyche_optim_distro.layout import Layout
from psyche_optim_distro.selection import Selection

BASIS_SCALE = 126
"""Even on purpose: cos = ±1/2 (the only rational value besides 0 and ±1) must not fall on a rounding tie, where the last bit of a
platform's cosine would decide."""

MAX_OPERAND_BITS = 11
EXACT_LIMIT = 2**24
OUTLIER_FACTOR = 8.0
"""In value mode a payload's values are cut at this many times the (lower) median of the payloads' largest magnitudes."""

_COUNT_SHIFT = 10
_ONE_SENDER = 1 << _COUNT_SHIFT


@lru_cache(maxsize=64)
def integer_basis(size: int) -> Tensor:
    """Q [size, size], int64: round(126 cos(pi (2i + 1) k / 2n)), column 0 by 126 / sqrt(2): the DCT basis up to one factor."""
    angles = [math.pi * step / (2 * size) for step in range(4 * size)]
    cosines = torch.tensor([round(BASIS_SCALE * math.cos(angle)) for angle in angles])
    position = 2 * torch.arange(size).unsqueeze(1) + 1
    basis = cosines[position * torch.arange(size).unsqueeze(0) % (4 * size)]
    basis[:, 0] = round(BASIS_SCALE / math.sqrt(2))
    return basis


@lru_cache(maxsize=64)
def operand_bits(size: int) -> int:
    """Largest b <= 11 such that operands of magnitude <= 2**b times `integer_basis(size)` stay <= 2**24 in every partial sum."""
    row_sum = int(integer_basis(size).abs().sum(dim=1).max())
    return min(MAX_OPERAND_BITS, (EXACT_LIMIT // row_sum).bit_length() - 1)


class Aggregator:
    """Decodes the aggregate of many payloads for one parameter table. Keeps two scratch buffers of the model's size.

    Raises PluginError where torch was told to multiply float32 matrices in bfloat16, which cannot hold the operands.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        if torch.get_float32_matmul_precision() == "medium":
            message = "DisTrO needs exact products; got float32 matmul precision 'medium' (bfloat16), set 'high' or 'highest'"
            raise PluginError(message)

        self._layout = layout
        self._device = device
        sizes = sorted({size for group in layout.groups for size in (group.height, group.width)})
        self._basis = {size: integer_basis(size).to(device, torch.float32) for size in sizes}
        self._bits = min((operand_bits(size) for size in sizes), default=MAX_OPERAND_BITS)
        self._votes = torch.zeros(layout.total, dtype=torch.int32, device=device)
        self._coefficients = torch.zeros(layout.total, device=device)

    @property
    def fixed_point(self) -> int:
        """V: the integer that stands for a mean of 1 (votes), or for the power of two over a chunk's largest value."""
        return 1 << self._bits

    def direction(self, selections: Sequence[Selection], *, one_bit: bool) -> Tensor:
        """-1, 0 or +1 per element, float32 [layout.total], of at least one selection.

        With `one_bit` the order of selections does not matter; otherwise they are summed in the order given.
        """
        if len(selections) > MAX_CLIENTS:
            message = f"at most {MAX_CLIENTS} payloads can be aggregated exactly, got {len(selections)}"
            raise ValueError(message)

        slots = [self._tensor(self._layout.slots(part.chunks, part.indices)) for part in selections]
        every_slot = torch.cat(slots)
        means = self._mean_votes(selections, slots, every_slot) if one_bit else self._mean_values(selections, slots, every_slot)
        self._coefficients.scatter_(0, every_slot, means)  # a slot that occurs twice gets the same value twice
        direction = self.decode_signs(self._coefficients)
        self._coefficients[every_slot] = 0
        return direction

    def decode_signs(self, coefficients: Tensor) -> Tensor:
        """Sign of the integer inverse DCT of integer coefficients (float32 [layout.total], magnitude <= fixed_point)."""
        direction = torch.empty_like(coefficients)
        for group in self._layout.groups:
            shape = (group.row_blocks, group.height, group.columns)
            stage = coefficients[group.start : group.stop].view(shape)
            if group.width > 1:
                stage = (stage.view(-1, group.width) @ self._basis[group.width].T).view(shape)
            if group.height > 1:
                if group.width > 1:
                    stage = rescale(stage, width=group.width, bits=operand_bits(group.height))
                stage = torch.matmul(self._basis[group.height], stage)
            torch.sign(stage, out=direction[group.start : group.stop].view(shape))

        return direction

    def _mean_votes(self, selections: Sequence[Selection], slots: Sequence[Tensor], every_slot: Tensor) -> Tensor:
        """round(V s / c) of each slot in `every_slot`. One int32 holds the sum s and, from bit 10, the count c."""
        for part, slot in zip(selections, slots, strict=True):
            self._votes.scatter_add_(0, slot, self._tensor(part.values).to(torch.int32) + _ONE_SENDER)

        both = self._votes[every_slot]
        self._votes[every_slot] = 0
        count = (both + _ONE_SENDER // 2) >> _COUNT_SHIFT
        total = both - (count << _COUNT_SHIFT)
        rounded = torch.div(2 * self.fixed_point * total.abs() + count, 2 * count, rounding_mode="floor")
        return (total.sign() * rounded).to(torch.float32)

    def _mean_values(self, selections: Sequence[Selection], slots: Sequence[Tensor], every_slot: Tensor) -> Tensor:
        """The mean of each slot in `every_slot`, scaled per chunk by a power of two to magnitude <= V and rounded.

        Values are cut at OUTLIER_FACTOR medians, then summed in float64 in the order given.
        """
        largest = sorted(float(np.abs(part.values).max()) for part in selections if part.values.size)
        limit = OUTLIER_FACTOR * largest[(len(largest) - 1) // 2] if largest else 0.0
        sums = torch.zeros(self._layout.total, dtype=torch.float64, device=self._device)
        counts = torch.zeros_like(sums)
        for part, slot in zip(selections, slots, strict=True):
            values = self._tensor(part.values).to(torch.float64).clamp(-limit, limit)
            sums.scatter_add_(0, slot, values)  # one payload holds a slot once, so there is no race
            counts.scatter_add_(0, slot, torch.ones_like(values))

        means = sums[every_slot] / counts[every_slot]
        chunks = self._tensor(np.concatenate([part.chunks for part in selections]))
        peaks = torch.zeros(self._layout.chunk_base.size, dtype=torch.float64, device=self._device)
        peaks.scatter_reduce_(0, chunks, means.abs(), reduce="amax")
        # 2**(bits - e) where 2**(e - 1) <= peak < 2**e, made from the exponent field; peaks under 2**-223 count as that.
        exponent = (peaks.view(torch.int64) >> 52).clamp(min=800)
        scale = ((self._bits + 1022 + 1023 - exponent) << 52).view(torch.float64)
        return torch.round(means * scale[chunks]).to(torch.float32)

    def _tensor(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def rescale(stage: Tensor, *, width: int, bits: int) -> Tensor:
    """Each block of integers [row_blocks, height, columns] times its power of two to magnitude <= 2**bits, rounded half to even.

    The power is 2**(bits - e) where 2**(e - 1) <= largest magnitude < 2**e, made from the exponent field of the maximum, which
    no order of evaluation changes. Multiplication by it is exact, so the rounding is the only one.
    """
    row_blocks, height, columns = stage.shape
    blocks = stage.view(row_blocks, height, columns // width, width)
    peaks = blocks.abs().amax(dim=3).amax(dim=1)  # [row_blocks, col_blocks]
    exponent = (peaks.view(torch.int32) >> 23).clamp(min=127)  # biased; an all-zero block counts as peak 1
    scale = ((bits + 126 + 127 - exponent) << 23).view(torch.float32)
    return (blocks * scale[:, None, :, None]).round_().view(stage.shape)
