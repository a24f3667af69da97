"""Top-k: which coefficients of each chunk are sent.

One that is zero never is, so an all-zero chunk sends nothing; nor is one that is only the rounding noise of the transform, which
a sign would raise to a full vote. (The reference sends both.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psyche_optim_distro.layout import ChunkClass, IntArray, Layout
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


def top_coefficients(coefficients: Tensor, *, width: int, keep: int) -> tuple[Tensor, Tensor]:
    """The `keep` coefficients of largest magnitude of each block of [row_blocks, height, columns], by ascending index.

    Returns indices int64 and values, both [chunks, keep]. NaN counts as largest, so a chunk that is not finite shows in the
    values. Which of equal magnitudes is taken is not specified.
    """
    rows = chunk_rows(coefficients, width)
    indices = torch.topk(rows.abs(), keep, dim=1, sorted=False).indices.sort(dim=1).values
    return indices, rows.gather(1, indices)


def select(layout: Layout, coefficients: Tensor) -> Selection:
    """Top-k of every chunk of a flat coefficient buffer [layout.total]. Values are copied to the CPU."""
    indices = [np.zeros((entry.chunks.size, entry.keep), dtype=np.int64) for entry in layout.classes]
    values = [np.zeros((entry.chunks.size, entry.keep), dtype=np.float32) for entry in layout.classes]
    for group in layout.groups:
        natural = coefficients[group.start : group.stop].view(group.row_blocks, group.height, group.columns)
        index, value = top_coefficients(natural, width=group.width, keep=group.keep)
        number = int(layout.chunk_class[group.chunks[0]])
        indices[number][layout.chunk_rank[group.chunks]] = index.cpu().numpy()
        values[number][layout.chunk_rank[group.chunks]] = value.cpu().numpy()

    parts = [_flatten(*tables) for tables in zip(layout.classes, indices, values, strict=True)]
    return concatenate(parts)


def concatenate(parts: list[Selection]) -> Selection:
    """One selection of several, in order."""
    if not parts:
        return Selection(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))

    return Selection(
        np.concatenate([part.chunks for part in parts]),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def _flatten(entry: ChunkClass, indices: IntArray, values: NDArray[np.float32]) -> Selection:
    """Tables [chunks of the class, keep] without zeros and noise."""
    magnitudes = np.abs(values)
    sent = magnitudes > NOISE * magnitudes.max(axis=1, initial=0, keepdims=True)
    sent |= ~np.isfinite(values)  # to be seen and refused by the caller
    chunks = np.broadcast_to(entry.chunks[:, None], indices.shape)[sent]
    return Selection(chunks, indices[sent], values[sent])
