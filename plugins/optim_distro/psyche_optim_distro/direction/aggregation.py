"""Aggregates decoded payloads to the direction of a step, in integers: equal bits for every device, thread count and order.

A slot is the position of one coefficient. The mean over a slot's senders becomes an integer v with |v| <= V = 2**b and at most
8 significant bits. The inverse transform of such integers is exact; `integer_idct` has the proof.

- Votes (±1): c senders with the sum s, |s| <= c <= 256, give v = round(V s / c), half away from zero, then rounded to 8
  significant bits, half to even. A table holds all results.
- Values: `normalization` scales each sender's values in each chunk to the same root mean square, as integers. So one sender has
  the weight of one voter. Means are rounded half away from zero, scaled per chunk by a power of two, and rounded as above.
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
from psyche_optim_distro.chunks.layout import Group, IntArray, Layout
from psyche_optim_distro.chunks.tiles import Workspace, tiles_of
from psyche_optim_distro.direction.integer_idct import MAX_OPERAND_BITS, IntegerIDCT, operand_bits
from psyche_optim_distro.direction.normalization import normalize_values
from psyche_optim_distro.payload.top_k import Selection

_CLEAR_RATIO = 32
"""Clearing this many consecutive elements takes as long as clearing one element by index."""

COUNT_SHIFT = 10
_ONE_SENDER = 1 << COUNT_SHIFT


@dataclass(frozen=True, slots=True, eq=False)
class TileVotes:
    """The votes of one payload, by tile.

    places: [n], 2 * (position in the tile) + (1 for a vote of -1, else 0); int32 if tiles are small enough, else int64. ends:
    int64 [tiles, 2], begin and end of each tile's votes in `places`.
    """

    places: NDArray[np.signedinteger[Any]]
    ends: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.places.nbytes + self.ends.nbytes


class Aggregator:
    """Computes the direction of a step from many payloads, tile by tile.

    layout: parameter table. device: where to compute. workspace: scratch memory, which may be shared with code that does not run
    at the same time; None: its own. products: dtype of the inverse transform's products, see `IntegerIDCT`.
    """

    def __init__(
        self, layout: Layout, device: torch.device, *, workspace: Workspace | None = None, products: torch.dtype | None = None
    ) -> None:
        self._layout = layout
        self._device = device
        sizes = list(layout.sides)
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
        self._workspace = Workspace(device) if workspace is None else workspace
        self._inverse = IntegerIDCT(sizes, device, workspace=self._workspace, products=products)
        self._means = mean_of_votes(self._bits).to(device)

    def direction(self, selections: Sequence[Selection], *, one_bit: bool) -> Tensor:
        """Return `vote_directions` or `value_directions` of all tiles in one float32 tensor [layout.total]."""
        whole = torch.empty(self._layout.total, device=self._device)
        parts = self.vote_directions([self.votes(each) for each in selections]) if one_bit else self.value_directions(selections)
        for tile, direction in parts:
            whole[tile.start : tile.stop] = direction
        return whole

    def votes(self, selection: Selection) -> TileVotes:
        """Return the votes of a selection of signs. May run in any thread."""
        bounds = self._bounds(selection)
        packed = self._places(selection, bounds)
        packed *= 2
        packed += np.signbit(selection.values)
        return TileVotes(packed, bounds)

    def vote_directions(self, votes: Sequence[TileVotes], *, signs: bool = True) -> Iterator[tuple[Group, Tensor]]:
        """Yield each tile with its direction: -1, 0 or +1 per element, float32 [elements of the tile].

        votes: of at least one payload, in any order. signs: False for the decoded values, see `IntegerIDCT.values`. A yielded
        tensor may be changed, and is valid until the next iteration. Raises ValueError for more than MAX_CLIENTS payloads.
        """
        _check_count(len(votes))
        bounds = [(part.places, part.ends.tolist()) for part in votes]  # reading single numbers from a numpy array is slow

        def fill(number: int, coefficients: Tensor) -> Tensor:
            parts = [places[ends[number][0] : ends[number][1]] for places, ends in bounds]
            return self._mean_votes(parts, coefficients)

        return self._directions(fill, self._inverse.signs if signs else self._inverse.values)

    def value_directions(self, selections: Sequence[Selection], *, signs: bool = True) -> Iterator[tuple[Group, Tensor]]:
        """Like `vote_directions`, from the values of at least one payload, in any order."""
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

        return self._directions(fill, self._inverse.signs if signs else self._inverse.values)

    def _directions(
        self, fill: Callable[[int, Tensor], Tensor], inverse: Callable[[Tensor, Group], Tensor]
    ) -> Iterator[tuple[Group, Tensor]]:
        """Yield each tile's direction. fill(tile number, zeros): writes the mean coefficients, returns the positions it wrote."""
        coefficients = self._inverse.lend_input(self._largest).zero_()
        for number, tile in enumerate(self._tiles):
            own = coefficients[: tile.stop - tile.start]
            written = fill(number, own)
            yield tile, inverse(own.view(tile.shape), tile).view(-1)
            _clear(own, written)

    def _bounds(self, selection: Selection) -> NDArray[np.int64]:
        """Return begin and end of each tile's coefficients in a selection: [tiles, 2]."""
        bounds = np.zeros((len(self._tiles), 2), dtype=np.int64)
        class_of, chunks, first = self._layout.chunk_class.item, selection.chunks, 0
        for number, own in enumerate(self._tiles_of_class):
            last = bisect.bisect_right(range(chunks.size), number, lo=first, key=lambda at: class_of(chunks.item(at)))
            bounds[own] = first + np.searchsorted(chunks[first:last], self._tile_chunks[own])
            first = last
        return bounds

    def _places(self, selection: Selection, bounds: NDArray[np.int64]) -> NDArray[np.signedinteger[Any]]:
        """Return positions in their tiles [n]. Row r of a chunk begins r * (columns - width) later there than in the chunk."""
        places: NDArray[np.signedinteger[Any]] = self._base.take(selection.chunks)
        places += selection.indices
        for group, tiles in zip(self._layout.groups, self._tiles_of_group, strict=True):
            own = slice(int(bounds[tiles[0], 0]), int(bounds[tiles[-1], 1]))
            if group.columns > group.width:
                places[own] += selection.indices[own] // group.width * (group.columns - group.width)
        return places

    def _mean_votes(self, parts: Sequence[NDArray[Any]], coefficients: Tensor) -> Tensor:
        """Write round(V s / c) of every voted position; returns the positions. One int32 holds the sum s and the count c."""
        packed = self._tensor(np.concatenate(parts))
        every = (packed >> 1).to(torch.int64)
        counts = self._workspace.lend(2, coefficients.shape, dtype=torch.int32).zero_()
        counts.scatter_add_(0, every, (packed & 1).to(torch.int32).mul_(-2).add_(1 + _ONE_SENDER))
        means = self._means.index_select(0, counts.index_select(0, every))
        coefficients.put_(every, means)  # a repeated position gets the same mean again
        return every

    def _mean_values(
        self,
        tile: Group,
        places: NDArray[np.signedinteger[Any]],
        amounts: NDArray[np.int32],
        chunks: IntArray,
        coefficients: Tensor,
    ) -> Tensor:
        """Write the mean of every position, scaled per chunk by a power of two to magnitude <= V, and rounded.

        Returns the positions. places, amounts, chunks: [n], of all payloads. amounts: `normalize_values`; 256 fit into int32.
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
        # 2**(bits - e) where 2**(e - 1) <= peak < 2**e, computed from the exponent field.
        exponent = peaks.to(torch.float64).view(torch.int64) >> 52
        scale = ((self._bits + 1022 + 1023 - exponent) << 52).view(torch.float64)
        coefficients[every] = torch.round(means * scale[chunk]).to(torch.float32).to(torch.bfloat16)
        return every

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


@lru_cache(maxsize=12)
def mean_of_votes(bits: int) -> Tensor:
    """Return the table of round(V s / c), half away from zero, V = 2**bits: bfloat16, index c * 2**10 + s, c <= 256, |s| <= c."""
    packed = torch.arange(MAX_CLIENTS * _ONE_SENDER + _ONE_SENDER // 2)
    count = (packed + _ONE_SENDER // 2) >> COUNT_SHIFT
    total = packed - (count << COUNT_SHIFT)
    safe = count.clamp(min=1)
    means = torch.div((2 * total.abs() << bits) + safe, 2 * safe, rounding_mode="floor")
    return (total.sign() * means).to(torch.bfloat16)


def _clear(flat: Tensor, places: Tensor) -> None:
    """Set these positions to zero, or the whole tensor if that is faster."""
    if places.numel() * _CLEAR_RATIO > flat.numel():
        flat.zero_()
    else:
        flat.index_fill_(0, places, 0)


def _check_count(payloads: int) -> None:
    if payloads > MAX_CLIENTS:
        message = f"at most {MAX_CLIENTS} payloads can be aggregated exactly, got {payloads}"
        raise ValueError(message)
