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
is wanted, sign(0) = 0. Votes: c senders and a sum s with |s| <= c <= 256 give v = round(V s / c), half away from zero, looked up
in a table of exact integers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psyche_core.errors import PluginError
from psyche_core.types import MAX_CLIENTS
from psyche_optim_distro.layout import Group, IntArray, Layout
from psyche_optim_distro.selection import Selection
from psyche_optim_distro.strips import Workspace, strips_of

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


@dataclass(frozen=True, slots=True, eq=False)
class Votes:
    """The votes of one payload, ready to be counted.

    places: [n], twice the position in its strip, and one more for a vote of -1; int32 where strips are small enough. ends: int64
    [strips, 2], where the votes of each strip begin and end.
    """

    places: NDArray[np.signedinteger[Any]]
    ends: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self.places.nbytes + self.ends.nbytes


class Aggregator:
    """Decodes the aggregate of many payloads for one parameter table, strip by strip.

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
        self._strips = strips_of(layout, device)
        ends = [(strip.first_chunk, strip.first_chunk + strip.chunk_count) for strip in self._strips]
        self._strip_chunks = np.array(ends, dtype=np.int64).reshape(-1, 2)
        self._strip_class = layout.chunk_class[self._strip_chunks[:, 0]]
        self._largest = max((strip.stop - strip.start for strip in self._strips), default=0)
        self._place_type: type[np.signedinteger[Any]] = np.int32 if self._largest < 2**30 else np.int64
        self._base = layout.chunk_base.copy()
        for strip in self._strips:
            self._base[strip.first_chunk : strip.first_chunk + strip.chunk_count] -= strip.start
        self._work = Workspace(self._strips, device)
        self._means = mean_of_votes(self._bits).to(device)

    @property
    def fixed_point(self) -> int:
        """V: the integer that stands for a mean of 1 (votes), or for the power of two over a chunk's largest value."""
        return 1 << self._bits

    def direction(self, selections: Sequence[Selection], *, one_bit: bool) -> Tensor:
        """`counted` or `averaged` in one float32 tensor [layout.total]."""
        whole = torch.empty(self._layout.total, device=self._device)
        parts = self.counted([self.votes(each) for each in selections]) if one_bit else self.averaged(selections)
        for strip, direction in parts:
            whole[strip.start : strip.stop] = direction
        return whole

    def votes(self, selection: Selection) -> Votes:
        """A selection of signs, prepared; any thread."""
        places = self._places(selection)
        packed: NDArray[np.signedinteger[Any]] = (2 * places + (selection.values < 0)).astype(self._place_type)
        return Votes(packed, self._bounds(selection))

    def counted(self, votes: Sequence[Votes]) -> Iterator[tuple[Group, Tensor]]:
        """-1, 0 or +1 per element of each strip, float32 [elements of the strip], of at least one payload's votes, in any order.

        A strip's tensor is valid until the next one is asked for. Raises ValueError for too many payloads.
        """
        _check_count(len(votes))
        counts = torch.zeros(self._largest, dtype=torch.int32, device=self._device)

        def fill(number: int, strip: Group, coefficients: Tensor) -> Tensor:
            parts = [part.places[slice(*part.ends[number])] for part in votes]
            return self._mean_votes(parts, counts[: strip.stop - strip.start], coefficients)

        return self._decoded(fill)

    def averaged(self, selections: Sequence[Selection]) -> Iterator[tuple[Group, Tensor]]:
        """The same of at least one payload's values, which are summed in the order given."""
        _check_count(len(selections))
        limit = _value_limit(selections)
        every = [self._places(part) for part in selections]
        bounds = [self._bounds(part) for part in selections]

        def fill(number: int, strip: Group, coefficients: Tensor) -> Tensor:
            own = [slice(*ends[number]) for ends in bounds]
            places = [place[part] for place, part in zip(every, own, strict=True)]
            values = [selection.values[part] for selection, part in zip(selections, own, strict=True)]
            chunks = [selection.chunks[part] for selection, part in zip(selections, own, strict=True)]
            return self._mean_values(strip, places, values, chunks, limit, coefficients)

        return self._decoded(fill)

    def _decoded(self, fill: Callable[[int, Group, Tensor], Tensor]) -> Iterator[tuple[Group, Tensor]]:
        """Each strip's direction. fill: puts a strip's mean coefficients into zeros and returns the places it wrote to."""
        coefficients = torch.zeros(self._largest, device=self._device)
        for number, strip in enumerate(self._strips):
            own = coefficients[: strip.stop - strip.start]
            written = fill(number, strip, own)
            yield strip, self._decode_signs(own.view(strip.shape), strip).view(-1)
            own.index_fill_(0, written, 0.0)

    def _places(self, selection: Selection) -> IntArray:
        """Positions in their strips, int64 [n]."""
        chunks, widths = selection.chunks, self._layout.chunk_width[selection.chunks]
        rows = selection.indices // widths
        places: IntArray = self._base[chunks] + rows * self._layout.chunk_columns[chunks] + (selection.indices - rows * widths)
        return places

    def _bounds(self, selection: Selection) -> NDArray[np.int64]:
        """For each strip, where its coefficients begin and end in a selection: [strips, 2]."""
        classes = self._layout.chunk_class[selection.chunks]
        edges = np.searchsorted(classes, np.arange(len(self._layout.classes) + 1))
        bounds = np.zeros((len(self._strips), 2), dtype=np.int64)
        for number, (first, last) in enumerate(itertools.pairwise(edges.tolist())):
            own = self._strip_class == number
            bounds[own] = first + np.searchsorted(selection.chunks[first:last], self._strip_chunks[own])
        return bounds

    def _decode_signs(self, stage: Tensor, strip: Group) -> Tensor:
        """Sign of the integer inverse DCT of integer coefficients (float32, magnitude <= fixed_point), in the strip's shape."""
        first, second = self._work.lend(0, strip.shape), self._work.lend(1, strip.shape)
        if strip.width > 1:
            torch.mm(stage.reshape(-1, strip.width), self._basis[strip.width].T, out=first.view(-1, strip.width))
            stage = first
        if strip.height > 1:
            if strip.width > 1:
                stage = rescale(stage, width=strip.width, bits=operand_bits(strip.height), out=self._work.lend(2, strip.shape))
            stage = torch.matmul(self._basis[strip.height], stage, out=second)
        return torch.sign(stage, out=first)

    def _mean_votes(self, parts: Sequence[NDArray[Any]], counts: Tensor, coefficients: Tensor) -> Tensor:
        """Put round(V s / c) of every voted place into `coefficients`; returns the places. One int32 holds the sum s and count c.

        counts: int32 scratch, zero before and after.
        """
        packed = self._tensor(np.concatenate(parts))
        every = (packed >> 1).to(torch.int64)
        counts.scatter_add_(0, every, (packed & 1).to(torch.int32).mul_(-2).add_(1 + _ONE_SENDER))
        means = self._means.index_select(0, counts.index_select(0, every))
        coefficients.scatter_(0, every, means)  # a place that occurs twice gets the same mean twice
        counts.index_fill_(0, every, 0)
        return every

    def _mean_values(
        self,
        strip: Group,
        places: Sequence[IntArray],
        values: Sequence[NDArray[np.float32]],
        chunks: Sequence[IntArray],
        limit: float,
        coefficients: Tensor,
    ) -> Tensor:
        """Put the mean of every place, scaled per chunk by a power of two to magnitude <= V and rounded, into `coefficients`.

        Returns the places. Values are cut at `limit`, then summed in float64 in the order given.
        """
        sums = torch.zeros(coefficients.numel(), dtype=torch.float64, device=self._device)
        counts = torch.zeros_like(sums)
        for place, value in zip(places, values, strict=True):
            slot = self._tensor(place)
            sums.scatter_add_(0, slot, self._tensor(value).to(torch.float64).clamp(-limit, limit))  # a slot once: no race
            counts.scatter_add_(0, slot, torch.ones(slot.numel(), dtype=torch.float64, device=self._device))

        every, chunk = self._tensor(np.concatenate(places)), self._tensor(np.concatenate(chunks) - strip.first_chunk)
        means = sums[every] / counts[every]
        peaks = torch.zeros(strip.chunk_count, dtype=torch.float64, device=self._device)
        peaks.scatter_reduce_(0, chunk, means.abs(), reduce="amax")
        # 2**(bits - e) where 2**(e - 1) <= peak < 2**e, made from the exponent field; peaks under 2**-223 count as that.
        exponent = (peaks.view(torch.int64) >> 52).clamp(min=800)
        scale = ((self._bits + 1022 + 1023 - exponent) << 52).view(torch.float64)
        coefficients[every] = torch.round(means * scale[chunk]).to(torch.float32)
        return every

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


@lru_cache(maxsize=12)
def mean_of_votes(bits: int) -> Tensor:
    """round(V s / c), half away from zero, at place c * 2**10 + s for c up to 256 senders and |s| <= c; V = 2**bits. float32."""
    packed = torch.arange(MAX_CLIENTS * _ONE_SENDER + _ONE_SENDER // 2)
    count = (packed + _ONE_SENDER // 2) >> _COUNT_SHIFT
    total = packed - (count << _COUNT_SHIFT)
    safe = count.clamp(min=1)
    means = torch.div((2 * total.abs() << bits) + safe, 2 * safe, rounding_mode="floor")
    return (total.sign() * means).to(torch.float32)


def _check_count(payloads: int) -> None:
    if payloads > MAX_CLIENTS:
        message = f"at most {MAX_CLIENTS} payloads can be aggregated exactly, got {payloads}"
        raise ValueError(message)


def _value_limit(selections: Sequence[Selection]) -> float:
    """What values are cut at: OUTLIER_FACTOR times the (lower) median of the payloads' largest."""
    largest = sorted(float(np.abs(part.values).max()) for part in selections if part.values.size)
    return OUTLIER_FACTOR * largest[(len(largest) - 1) // 2] if largest else 0.0


def rescale(stage: Tensor, *, width: int, bits: int, out: Tensor | None = None) -> Tensor:
    """Each block of integers [row_blocks, height, columns] times its power of two to magnitude <= 2**bits, rounded half to even.

    The power is 2**(bits - e) where 2**(e - 1) <= largest magnitude < 2**e, made from the exponent field of the maximum, which
    no order of evaluation changes. Multiplication by it is exact, so the rounding is the only one. out: a tensor like `stage` for
    the result.
    """
    row_blocks, height, columns = stage.shape
    blocks = stage.view(row_blocks, height, columns // width, width)
    found = torch.empty_like(stage) if out is None else out
    scaled = found.view(blocks.shape)
    peaks = torch.abs(blocks, out=scaled).amax(dim=1).amax(dim=2)  # [row_blocks, col_blocks]
    exponent = (peaks.view(torch.int32) >> 23).clamp(min=127)  # biased; an all-zero block counts as peak 1
    scale = ((bits + 126 + 127 - exponent) << 23).view(torch.float32)
    torch.mul(blocks, scale[:, None, :, None], out=scaled).round_()
    return found
