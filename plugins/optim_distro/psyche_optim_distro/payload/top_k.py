"""Top-k selection: the coefficients of each chunk that are sent.

Zero coefficients are not sent, so a chunk of zeros sends nothing. Coefficients that may be rounding noise of the transform are
not sent either, since their sign would become a full vote. The reference implementation sends both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psyche_optim_distro.chunks.layout import Group, IntArray, Layout
from psyche_optim_distro.chunks.precision import Precision

_CHUNKS_AT_ONCE = 512
"""Number of chunks whose candidates are compared at once. More would take more memory without being faster."""

_PACKED = 4096
"""Longest row whose magnitudes are packed with their positions: 12 bits for the position leave 11 bits of the mantissa."""

NOISE = {torch.float32: 2.0**-18, torch.bfloat16: 2.0**-7}
"""Coefficients below this fraction of their chunk's largest may be rounding noise of two products in that precision.

Measured with one coefficient per chunk: noise at other positions reaches 2**-20.8 of it with float32, 2**-8.1 with bfloat16.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Coefficients of one payload, sorted by class, chunk and index.

    chunks: int64 [n], chunk numbers. indices: int32 or int64 [n], row-by-row positions in the chunk. No pair occurs twice.
    values: float32 [n], never zero; +1 or -1 in a payload of signs.
    """

    chunks: IntArray
    indices: NDArray[np.signedinteger[Any]]
    values: NDArray[np.float32]


class CoefficientTables:
    """Coefficients of all chunks in dense tables, one pair per class: int64 indices and float32 values, both [chunks, topk].

    An entry with the value zero is unused and not sent. layout: parameter table. device: of the tables. precision: of the
    coefficients; it sets the noise limit.
    """

    def __init__(self, layout: Layout, device: torch.device, precision: Precision) -> None:
        self._layout = layout
        self._noise = [NOISE[precision.of(entry.size)] for entry in layout.classes]
        shapes = [(entry.chunks.size, entry.topk) for entry in layout.classes]
        self.indices: list[Tensor] = [torch.zeros(shape, dtype=torch.int64, device=device) for shape in shapes]
        self.values: list[Tensor] = [torch.zeros(shape, device=device) for shape in shapes]

    def of(self, tile: Group) -> tuple[Tensor, Tensor]:
        """Return indices and values of a tile's chunks: views [chunk_count, topk]."""
        number = int(self._layout.chunk_class[tile.first_chunk])
        first = int(self._layout.chunk_rank[tile.first_chunk])
        own = slice(first, first + tile.chunk_count)
        return self.indices[number][own], self.values[number][own]

    def drop_noise(self) -> None:
        """Set values at noise level to zero. Values that are not finite stay, so that later checks find them."""
        for values, share in zip(self.values, self._noise, strict=True):
            sizes = values.abs()
            if values.numel():
                noise = sizes <= share * sizes.amax(dim=1, keepdim=True)
                values[noise & sizes.isfinite()] = 0.0

    def selection(self) -> Selection:
        """Return the entries that are sent, on the CPU."""
        return concatenate([self._flat(number) for number in range(len(self.indices))])

    def replace_values(self, values: NDArray[np.float32]) -> None:
        """Replace the values that `selection` returns. values: float32 [n], in its order."""
        start = 0
        for table in self.values:
            sent = table != 0
            stop = start + int(sent.sum())
            table[sent] = torch.from_numpy(values[start:stop]).to(table.device)
            start = stop

    def scale(self, factor: float) -> None:
        """Multiply all values."""
        if factor != 1:
            for table in self.values:
                table.mul_(factor)

    def norm(self) -> float:
        """Return the L2 norm of all values."""
        return math.hypot(*(float(torch.linalg.vector_norm(table)) for table in self.values))

    def _flat(self, number: int) -> Selection:
        values = self.values[number].cpu().numpy()
        sent = values != 0
        indices = self.indices[number].cpu().numpy()
        chunks = np.broadcast_to(self._layout.classes[number].chunks[:, None], sent.shape)
        return Selection(chunks[sent], indices[sent], values[sent])


class TopKSelector:
    """Selects the `topk` coefficients of largest magnitude of each block of a group, which is passed to it tile by tile.

    A run is a part of a block's column. The largest k coefficients lie in the k runs with the largest maxima. So only these runs
    are stored for each tile, and the final selection among them is made once, for all tiles. NaN counts as largest, so that a
    chunk that is not finite is visible in the values. Which of several equal magnitudes is selected is not specified.
    """

    def __init__(self, group: Group, device: torch.device, *, dtype: torch.dtype = torch.float32) -> None:
        """dtype: of the coefficients."""
        self._group = group
        self._run = run = _run_length(group)
        count, topk = group.chunk_count, group.topk
        self._runs = torch.empty(count, topk, dtype=torch.int64, device=device)
        self._candidates = torch.empty(count, topk * run, dtype=dtype, device=device)
        # Offsets of each block, of the first element of each of its runs, and of the other elements of a run.
        self._block_starts = torch.arange(count, device=device).unsqueeze(1) * (group.height * group.width)
        of_block = torch.arange(group.height // run * group.width, device=device)
        self._run_starts = of_block // group.width * (run * group.width) + of_block % group.width
        self._steps = torch.arange(run, device=device) * group.width

    def add(self, tile: Group, coefficients: Tensor, *, out: Tensor | None = None) -> None:
        """Add a tile's coefficients [chunks, height, width]. out: scratch tensor of the same shape and dtype."""
        group, run, count = self._group, self._run, tile.chunk_count
        peaks = ordered_magnitudes(coefficients, out=out).view(count, group.height // run, run, group.width)
        peaks = (peaks.amax(dim=2) if run > 1 else peaks).view(count, -1)  # [chunks, runs]
        best = top_k_positions(peaks, topk=group.topk)  # [chunks, topk]
        starts = self._block_starts[:count] + self._run_starts[best]
        places = (starts.unsqueeze(2) + self._steps).view(-1)
        first = tile.first_chunk - group.first_chunk
        self._runs[first : first + count] = best
        self._candidates[first : first + count].view(-1).copy_(coefficients.view(-1).index_select(0, places))

    def result(self) -> tuple[Tensor, Tensor]:
        """Return indices int64, ascending in each chunk, and values float32, both [chunks, topk]. Call it after the last tile."""
        parts = zip(torch.split(self._candidates, _CHUNKS_AT_ONCE), torch.split(self._runs, _CHUNKS_AT_ONCE), strict=True)
        indices, values = zip(*(self._best(candidates, runs) for candidates, runs in parts), strict=True)
        return torch.cat(indices), torch.cat(values)

    def _best(self, candidates: Tensor, runs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the `result` of some chunks. candidates: [chunks, topk * run]; runs: [chunks, topk]."""
        run, width = self._run, self._group.width
        place = top_k_positions(ordered_magnitudes(candidates), topk=self._group.topk)
        chosen = runs.gather(1, place // run)
        indices, order = ((chosen // width * run + place % run) * width + chosen % width).sort(dim=1)
        return indices, candidates.gather(1, place).gather(1, order).to(torch.float32)


def ordered_magnitudes(values: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return numbers in the same order as the magnitudes of float32 or bfloat16 values; NaN is largest.

    On a CPU these are the bits of the values without the sign, as integers of the same width; elsewhere the magnitudes. out: a
    tensor like `values` whose memory is used.
    """
    if values.device.type != "cpu":
        return torch.abs(values, out=out)

    kind = torch.int32 if values.dtype == torch.float32 else torch.int16
    return torch.bitwise_and(values.view(kind), torch.iinfo(kind).max, out=None if out is None else out.view(kind))


def top_k_positions(ordered: Tensor, *, topk: int) -> Tensor:
    """Return positions of the `topk` largest of each row of `ordered_magnitudes` [rows, n]: int64 [rows, topk], in any order.

    On a CPU each position is packed into the lowest bits of its magnitude, and these integers are partitioned. This takes a fifth
    of the time of torch's topk, but magnitudes that differ by less than a 2,000th part may change places.
    """
    count = ordered.shape[1]
    if ordered.is_floating_point() or count > _PACKED:
        return torch.topk(ordered, topk, dim=1, sorted=False).indices

    if topk >= count:
        return torch.arange(count).expand(ordered.shape)

    low = (1 << (count - 1).bit_length()) - 1
    wide = ordered.to(torch.int32) << 16 if ordered.dtype == torch.int16 else ordered
    packed = torch.bitwise_or(wide & ~low, torch.arange(count, dtype=torch.int32))
    best = np.partition(packed.numpy(), count - topk, axis=1)[:, count - topk :] & low
    return torch.from_numpy(best.astype(np.int64))


def _run_length(group: Group) -> int:
    """Return the length of a run, a divisor of the height. A block then has about twice as many runs as candidate elements."""
    size = group.height * group.width
    ideal = math.sqrt(size / (2 * group.topk))
    divisors = [length for length in range(1, group.height + 1) if group.height % length == 0]
    worth = [length for length in divisors if length == 1 or group.topk * length * 4 <= size]
    return min(worth, key=lambda length: abs(math.log(length / ideal)))


def concatenate(parts: list[Selection]) -> Selection:
    """Join selections in their order."""
    if not parts:
        return Selection(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))

    return Selection(
        np.concatenate([part.chunks for part in parts]),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.values for part in parts]),
    )
