"""Top-k: which coefficients of each chunk are sent.

One that is zero never is, so an all-zero chunk sends nothing; nor is one that is only the rounding noise of the transform, which
a sign would raise to a full vote. (The reference sends both.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psyche_optim_distro.layout import Group, IntArray, Layout
from psyche_optim_distro.transform import chunk_rows

NOISE = 2.0**-18
"""Coefficients under this share of their chunk's largest are rounding noise: two float32 products of up to 1024 terms each."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Coefficients of one payload, sorted by class, chunk and index.

    chunks, indices: int64 [n], chunk number and row-by-row position inside the chunk; no pair occurs twice.
    values: float32 [n], never zero; in a one-bit payload +1 or -1.
    """

    chunks: IntArray
    indices: IntArray
    values: NDArray[np.float32]


class Tables:
    """The same for all chunks with room for all they may send, by class: int64 indices and float32 values, [chunks, keep].

    A value of zero is not sent. device: of the tables.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self._layout = layout
        shapes = [(entry.chunks.size, entry.keep) for entry in layout.classes]
        self.indices = [torch.zeros(shape, dtype=torch.int64, device=device) for shape in shapes]
        self.values = [torch.zeros(shape, device=device) for shape in shapes]

    def of(self, strip: Group) -> tuple[Tensor, Tensor]:
        """Indices and values of a strip's chunks, as views [chunk_count, keep]."""
        number = int(self._layout.chunk_class[strip.first_chunk])
        first = int(self._layout.chunk_rank[strip.first_chunk])
        own = slice(first, first + strip.chunk_count)
        return self.indices[number][own], self.values[number][own]

    def drop_noise(self) -> None:
        """Set to zero what is not worth sending. What is not finite stays, to be seen and refused."""
        for values in self.values:
            magnitudes = values.abs()
            if values.numel():
                noise = magnitudes <= NOISE * magnitudes.amax(dim=1, keepdim=True)
                values[noise & magnitudes.isfinite()] = 0.0

    def selection(self) -> Selection:
        """What is sent, on the CPU."""
        return concatenate([self._flat(number) for number in range(len(self.indices))])

    def replace_values(self, values: NDArray[np.float32]) -> None:
        """Put other values in place of those of `selection`, in its order."""
        start = 0
        for table in self.values:
            sent = table != 0
            stop = start + int(sent.sum())
            table[sent] = torch.from_numpy(values[start:stop]).to(table.device)
            start = stop

    def norm(self) -> float:
        """L2 norm of all values."""
        return math.hypot(*(float(torch.linalg.vector_norm(table)) for table in self.values))

    def _flat(self, number: int) -> Selection:
        values = self.values[number].cpu().numpy()
        sent = values != 0
        indices = self.indices[number].cpu().numpy()
        chunks = np.broadcast_to(self._layout.classes[number].chunks[:, None], sent.shape)
        return Selection(chunks[sent], indices[sent], values[sent])


def top_coefficients(coefficients: Tensor, *, width: int, keep: int) -> tuple[Tensor, Tensor]:
    """The `keep` coefficients of largest magnitude of each block of [row_blocks, height, columns], by ascending index.

    Returns indices int64 and values, both [chunks, keep]. NaN counts as largest, so a chunk that is not finite shows in the
    values. Which of equal magnitudes is taken is not specified.

    The largest k of a block lie in the k runs (parts of its rows) with the largest maxima, so where that is much less than the
    block only these are looked at closely.
    """
    row_blocks, height, columns = coefficients.shape
    run = _run_length(height, width, keep)
    if run is None:
        rows = chunk_rows(coefficients, width)
        indices = torch.topk(rows.abs(), keep, dim=1, sorted=False).indices.sort(dim=1).values
        return indices, rows.gather(1, indices)

    column_blocks, runs = columns // width, width // run
    parts = coefficients.view(row_blocks, height, column_blocks, runs, run)
    peaks = parts.abs().amax(dim=4)  # [row_blocks, height, column_blocks, runs]
    peaks = peaks.transpose(1, 2).reshape(row_blocks * column_blocks, height * runs)
    best = torch.topk(peaks, keep, dim=1, sorted=False).indices  # [chunks, keep], row * runs + run

    chunk = torch.arange(row_blocks * column_blocks, device=coefficients.device).unsqueeze(1)
    start = chunk // column_blocks * (height * columns) + chunk % column_blocks * width
    start = start + best // runs * columns + best % runs * run  # where each chosen run begins in the strip
    candidates = coefficients.reshape(-1, run)[start // run].view(chunk.shape[0], keep * run)
    place = torch.topk(candidates.abs(), keep, dim=1, sorted=False).indices  # [chunks, keep]
    chosen = best.gather(1, place // run)
    indices, order = (chosen // runs * width + chosen % runs * run + place % run).sort(dim=1)
    return indices, candidates.gather(1, place).gather(1, order)


def _run_length(height: int, width: int, keep: int) -> int | None:
    """Elements of a run; None where looking at all of a block is as good."""
    ideal = math.sqrt(height * width / keep)
    divisors = [length for length in (8, 16, 32, 64, 128) if width % length == 0 and keep * length * 4 <= height * width]
    return min(divisors, key=lambda length: abs(math.log(length / ideal)), default=None)


def select(layout: Layout, coefficients: Tensor) -> Selection:
    """Top-k of every chunk of a flat coefficient buffer [layout.total], on the CPU."""
    tables = Tables(layout, coefficients.device)
    for group in layout.groups:
        indices, values = tables.of(group)
        natural = coefficients[group.start : group.stop].view(group.shape)
        found = top_coefficients(natural, width=group.width, keep=group.keep)
        indices.copy_(found[0])
        values.copy_(found[1])
    tables.drop_noise()
    return tables.selection()


def concatenate(parts: list[Selection]) -> Selection:
    """One selection of several, in order."""
    if not parts:
        return Selection(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))

    return Selection(
        np.concatenate([part.chunks for part in parts]),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.values for part in parts]),
    )
