"""From accepted payloads to the direction of the step, in integers: equal bits on every device, thread count and arrival order.

Per slot, the mean over that slot's senders (votes of ±1, or values) becomes an integer |v| <= V = 2**b of at most 8 significant
bits, which the inverse transform (`integer_idct`, with the proof) takes exactly. TileVotes: c senders and a sum s, |s| <= c <= 256
give v = round(V s / c), half away from zero, then to 8 significant bits, half to even; looked up in a table of exact integers.
Values: each sender's are brought to the same root mean square in every chunk, as integers (`normalization`), so that one sender
weighs what one voter does; means are rounded half away from zero, and scaled per chunk by a power of two and rounded as above.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psyche_core.types import MAX_CLIENTS
from psyche_optim_distro.integer_idct import MAX_OPERAND_BITS, IntegerIDCT, operand_bits
from psyche_optim_distro.layout import Group, IntArray, Layout
from psyche_optim_distro.normalization import normalize_values
from psyche_optim_distro.top_k import Selection
from psyche_optim_distro.tiles import Workspace, tiles_of

_WORTH_CLEARING = 32
"""Elements that are cleared in a row in the time of one by its place."""

_COUNT_SHIFT = 10
_ONE_SENDER = 1 << _COUNT_SHIFT


@dataclass(frozen=True, slots=True, eq=False)
class TileVotes:
    """The votes of one payload, ready to be counted.

    places: [n], twice the position in its tile, and one more for a vote of -1; int32 where tiles are small enough. ends: int64
    [tiles, 2], where the votes of each tile begin and end.
    """

    places: NDArray[np.signedinteger[Any]]
    ends: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self.places.nbytes + self.ends.nbytes


class Aggregator:
    """Decodes the aggregate of many payloads for one parameter table, tile by tile.

    work: scratch memory for its tiles, to be shared with who uses it at other times; None for its own.
    products: what the inverse is multiplied in, see there.
    """

    def __init__(
        self, layout: Layout, device: torch.device, *, work: Workspace | None = None, products: torch.dtype | None = None
    ) -> None:
        self._layout = layout
        self._device = device
        sizes = sorted({size for group in layout.groups for size in (group.height, group.width)})
        self._bits = min((operand_bits(size) for size in sizes), default=MAX_OPERAND_BITS)
        self._tiles = tiles_of(layout, device)
        tile_class = layout.chunk_class[[tile.first_chunk for tile in self._tiles]]
        self._tiles_of_class = [np.flatnonzero(tile_class == number) for number in range(len(layout.classes))]
        of_group = [bisect.bisect_right(layout.groups, tile.start, key=lambda group: group.start) - 1 for tile in self._tiles]
        self._tiles_of_group = [np.flatnonzero(np.equal(of_group, number)) for number in range(len(layout.groups))]
        ends = [(tile.first_chunk, tile.first_chunk + tile.chunk_count) for tile in self._tiles]
        self._tile_chunks = np.array(ends, dtype=np.int64).reshape(-1, 2)
        self._largest = max((tile.stop - tile.start for tile in self._tiles), default=0)
        self._place_type: type[np.signedinteger[Any]] = np.int32 if self._largest < 2**30 else np.int64
        starts = np.repeat([tile.start for tile in self._tiles], [tile.chunk_count for tile in self._tiles])
        self._base = (layout.chunk_base - starts).astype(self._place_type)
        self._work = Workspace(device) if work is None else work
        self._inverse = IntegerIDCT(sizes, device, work=self._work, products=products)
        self._means = mean_of_votes(self._bits).to(device)

    @property
    def fixed_point(self) -> int:
        """V: the integer that stands for a mean of 1 (votes), or for the power of two over a chunk's largest mean (values)."""
        return 1 << self._bits

    def direction(self, selections: Sequence[Selection], *, one_bit: bool) -> Tensor:
        """`vote_directions` or `value_directions` in one float32 tensor [layout.total]."""
        whole = torch.empty(self._layout.total, device=self._device)
        parts = self.vote_directions([self.votes(each) for each in selections]) if one_bit else self.value_directions(selections)
        for tile, direction in parts:
            whole[tile.start : tile.stop] = direction
        return whole

    def votes(self, selection: Selection) -> TileVotes:
        """A selection of signs, prepared; any thread."""
        bounds = self._bounds(selection)
        packed = self._places(selection, bounds)
        packed *= 2
        packed += np.signbit(selection.values)
        return TileVotes(packed, bounds)

    def vote_directions(self, votes: Sequence[TileVotes]) -> Iterator[tuple[Group, Tensor]]:
        """-1, 0 or +1 per element of each tile, float32 [elements of the tile], of at least one payload's votes, in any order.

        A tile's tensor is valid until the next one is asked for. Raises ValueError for too many payloads.
        """
        _check_count(len(votes))
        bounds = [(part.places, part.ends.tolist()) for part in votes]  # numbers of numpy's are slow to take out one by one

        def fill(number: int, coefficients: Tensor) -> Tensor:
            parts = [places[ends[number][0] : ends[number][1]] for places, ends in bounds]
            return self._mean_votes(parts, coefficients)

        return self._directions(fill)

    def value_directions(self, selections: Sequence[Selection]) -> Iterator[tuple[Group, Tensor]]:
        """The same of at least one payload's values, in any order."""
        _check_count(len(selections))
        bounds = [self._bounds(part) for part in selections]
        every = [
            (self._places(part, own), normalize_values(part), part.chunks, own.tolist())
            for part, own in zip(selections, bounds, strict=True)
        ]

        def fill(number: int, coefficients: Tensor) -> Tensor:
            own = [[whole[slice(*ends[number])] for whole in arrays] for *arrays, ends in every]
            places, amounts, chunks = (np.concatenate(parts) for parts in zip(*own, strict=True))
            return self._mean_values(self._tiles[number], places, amounts, chunks, coefficients)

        return self._directions(fill)

    def _directions(self, fill: Callable[[int, Tensor], Tensor]) -> Iterator[tuple[Group, Tensor]]:
        """Each tile's direction. fill: puts a tile's mean coefficients into zeros and returns the places it wrote to."""
        coefficients = self._inverse.lend_input(self._largest).zero_()
        for number, tile in enumerate(self._tiles):
            own = coefficients[: tile.stop - tile.start]
            written = fill(number, own)
            yield tile, self._inverse.signs(own.view(tile.shape), tile).view(-1)
            _clear(own, written)

    def _bounds(self, selection: Selection) -> NDArray[np.int64]:
        """For each tile, where its coefficients begin and end in a selection: [tiles, 2]."""
        bounds = np.zeros((len(self._tiles), 2), dtype=np.int64)
        class_of, chunks, first = self._layout.chunk_class.item, selection.chunks, 0
        for number, own in enumerate(self._tiles_of_class):
            last = bisect.bisect_right(range(chunks.size), number, lo=first, key=lambda at: class_of(chunks.item(at)))
            bounds[own] = first + np.searchsorted(chunks[first:last], self._tile_chunks[own])
            first = last
        return bounds

    def _places(self, selection: Selection, bounds: NDArray[np.int64]) -> NDArray[np.signedinteger[Any]]:
        """Positions in their tiles [n]: a coefficient in row r of its chunk lies r times the other columns further on."""
        places: NDArray[np.signedinteger[Any]] = self._base.take(selection.chunks)
        places += selection.indices
        for group, tiles in zip(self._layout.groups, self._tiles_of_group, strict=True):
            own = slice(int(bounds[tiles[0], 0]), int(bounds[tiles[-1], 1]))
            if group.columns > group.width:
                places[own] += selection.indices[own] // group.width * (group.columns - group.width)
        return places

    def _mean_votes(self, parts: Sequence[NDArray[Any]], coefficients: Tensor) -> Tensor:
        """Put round(V s / c) of every voted place into `coefficients`; returns the places. An int32 holds sum s and count c."""
        packed = self._tensor(np.concatenate(parts))
        every = (packed >> 1).to(torch.int64)
        counts = self._work.lend(2, coefficients.shape, dtype=torch.int32).zero_()
        counts.scatter_add_(0, every, (packed & 1).to(torch.int32).mul_(-2).add_(1 + _ONE_SENDER))
        means = self._means.index_select(0, counts.index_select(0, every))
        coefficients.put_(every, means)  # a place that occurs twice gets the same mean twice
        return every

    def _mean_values(
        self,
        tile: Group,
        places: NDArray[np.signedinteger[Any]],
        amounts: NDArray[np.int32],
        chunks: IntArray,
        coefficients: Tensor,
    ) -> Tensor:
        """Put the mean of every place, scaled per chunk by a power of two to magnitude <= V and rounded, into `coefficients`.

        Returns the places. places, amounts, chunks: of all payloads; amounts: `normalize_values` results, 256 of which fit into int32.
        """
        every = self._tensor(places).to(torch.int64)
        sums = torch.zeros(coefficients.numel(), dtype=torch.int32, device=self._device)
        counts = torch.zeros_like(sums)
        sums.scatter_add_(0, every, self._tensor(amounts))
        counts.scatter_add_(0, every, torch.ones_like(every, dtype=torch.int32))

        total, count = sums[every].to(torch.int64), counts[every].to(torch.int64)
        means = total.sign() * torch.div(2 * total.abs() + count, 2 * count, rounding_mode="floor")
        chunk = self._tensor(chunks - tile.first_chunk)
        peaks = torch.ones(tile.chunk_count, dtype=torch.int64, device=self._device)
        peaks.scatter_reduce_(0, chunk, means.abs(), reduce="amax")
        # 2**(bits - e) where 2**(e - 1) <= peak < 2**e, made from the exponent field.
        exponent = peaks.to(torch.float64).view(torch.int64) >> 52
        scale = ((self._bits + 1022 + 1023 - exponent) << 52).view(torch.float64)
        coefficients[every] = torch.round(means * scale[chunk]).to(torch.float32).to(torch.bfloat16)
        return every

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


@lru_cache(maxsize=12)
def mean_of_votes(bits: int) -> Tensor:
    """round(V s / c), half away from zero, as bfloat16, at place c * 2**10 + s for c up to 256 senders, |s| <= c; V = 2**bits."""
    packed = torch.arange(MAX_CLIENTS * _ONE_SENDER + _ONE_SENDER // 2)
    count = (packed + _ONE_SENDER // 2) >> _COUNT_SHIFT
    total = packed - (count << _COUNT_SHIFT)
    safe = count.clamp(min=1)
    means = torch.div((2 * total.abs() << bits) + safe, 2 * safe, rounding_mode="floor")
    return (total.sign() * means).to(torch.bfloat16)


def _clear(flat: Tensor, places: Tensor) -> None:
    """Set these places to zero, or everything where they are so many that it is faster."""
    if places.numel() * _WORTH_CLEARING > flat.numel():
        flat.zero_()
    else:
        flat.index_fill_(0, places, 0)


def _check_count(payloads: int) -> None:
    if payloads > MAX_CLIENTS:
        message = f"at most {MAX_CLIENTS} payloads can be aggregated exactly, got {payloads}"
        raise ValueError(message)
