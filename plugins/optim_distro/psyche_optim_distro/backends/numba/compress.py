"""`Compressor` with compiled kernels. Delta and gradients are read once, parameter by parameter.

All arithmetic is float32, which takes no more time here than bfloat16 products do in torch. So the order of two coefficients can
be wrong only if they are equal to within float32's rounding. For parameters on a CPU only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psyche_optim_distro.backends.numba.compress_kernels import compress_group
from psyche_optim_distro.backends.numba.fast_dct import forward_basis
from psyche_optim_distro.backends.numba.matrix_kernels import Floats, Integers
from psyche_optim_distro.backends.numba.threads import run_in_threads
from psyche_optim_distro.chunks.layout import Group, Layout
from psyche_optim_distro.chunks.precision import Precision
from psyche_optim_distro.compress import Compressor
from psyche_optim_distro.payload.top_k import CoefficientTables
from psyche_optim_distro.preconditioner import Preconditioner

_RUNS = (16, 8, 4, 2)
"""Rows per run of the first top-k stage, which examines only the largest of each run.

A run length is used only if a chunk has at least 2 * topk runs.
"""

NO_F32, NO_BF16 = np.empty(0, np.float32), np.empty(0, np.uint16)


@dataclass(frozen=True, slots=True)
class _ChunkRange:
    """Chunks first to last - 1 of one parameter. group: all chunks of the parameter. run: see `compress_group`."""

    name: str
    group: Group
    run: int
    first: int
    last: int


class NumbaCompressor(Compressor):
    """Compressor for parameters on a CPU. Its first use on a machine compiles for some seconds.

    layout: parameter table.
    """

    precision: Precision = Precision()

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._bases = {
            size: forward_basis(size) for size in {side for group in layout.groups for side in (group.height, group.width)}
        }
        self._parameters = _parameters_of(layout)
        self._warm_up()

    def compress(
        self,
        delta: Tensor,
        gradients: Mapping[str, Tensor],
        unsubtracted: Sequence[CoefficientTables],
        tables: CoefficientTables,
        *,
        scale: float,
        decay: float,
        factor: float = 1.0,
        preconditioner: Preconditioner | None = None,
    ) -> None:
        """See `Compressor.compress`."""
        flat = delta.numpy()
        squares, stays, correction = NO_F32, 0.0, 1.0
        if preconditioner is not None:
            squares, stays = preconditioner.mean_squares.numpy(), preconditioner.beta2
            correction = preconditioner.count_gradient()
        arrays = {name: _array(gradient) for name, gradient in gradients.items()}
        sent = [_sent(unsubtracted, number, entry.chunks.size) for number, entry in enumerate(self._layout.classes)]

        def work(part: int, parts: int) -> None:
            for chunks in _chunk_ranges(self._parameters, part, parts):
                group, number = chunks.group, int(self._layout.chunk_class[chunks.group.first_chunk])
                rank = int(self._layout.chunk_rank[group.first_chunk])
                own = slice(rank, rank + group.chunk_count)
                down, across = self._bases[group.height], self._bases[group.width]
                compress_group(
                    chunks.first,
                    chunks.last,
                    flat[group.start : group.stop],
                    *arrays.get(chunks.name, (NO_F32, NO_BF16)),
                    np.float32(scale if preconditioner is not None else scale * factor),
                    np.float32(decay),
                    squares[group.start : group.stop],
                    np.float32(factor),
                    np.float32(stays),
                    np.float32(1 - stays),
                    np.float32(1 / correction),
                    sent[number][0][own],
                    sent[number][1][own],
                    group.height,
                    group.columns,
                    group.width,
                    down.rows,
                    down.blocks,
                    down.matrices,
                    across.rows,
                    across.blocks,
                    across.matrices,
                    down.order,
                    across.order,
                    chunks.run,
                    tables.indices[number].numpy()[own],
                    tables.values[number].numpy()[own],
                )

        run_in_threads(work, elements=self._layout.total)

    def _warm_up(self) -> None:
        """Compile the kernels now, not during a round."""
        basis, places, values, zero = forward_basis(1), np.empty((0, 0), np.int64), np.empty((0, 0), np.float32), np.float32(0)
        one = basis.rows, basis.blocks, basis.matrices
        compress_group(
            0,
            0,
            NO_F32,
            NO_F32,
            NO_BF16,
            zero,
            zero,
            NO_F32,
            zero,
            zero,
            zero,
            zero,
            places,
            values,
            1,
            1,
            1,
            *one,
            *one,
            basis.order,
            basis.order,
            1,
            places,
            values,
        )


def _parameters_of(layout: Layout) -> list[_ChunkRange]:
    """Return every parameter with all its chunks, in memory order."""
    found = []
    for entry in sorted(layout.parameters, key=lambda entry: entry.start):
        group = next((group for group in layout.groups if group.start <= entry.start < entry.stop <= group.stop), None)
        if group is not None:
            size = group.height * group.width
            first_chunk = group.first_chunk + (entry.start - group.start) // size
            rows = math.prod(entry.shape) // (group.height * group.columns)
            own = replace(group, start=entry.start, row_blocks=rows, first_chunk=first_chunk)
            found.append(_ChunkRange(entry.name, own, _run(own), 0, own.chunk_count))
    return found


def _chunk_ranges(parameters: Sequence[_ChunkRange], part: int, parts: int) -> Iterator[_ChunkRange]:
    """Yield the chunks that begin in part `part` of `parts` equal parts of memory."""
    total = parameters[-1].group.stop if parameters else 0
    for whole in parameters:
        group = whole.group
        size = group.height * group.width
        first, last = (
            min(max(-(-(total * edge // parts - group.start) // size), 0), group.chunk_count) for edge in (part, part + 1)
        )
        if first < last:
            yield replace(whole, first=first, last=last)


def _run(group: Group) -> int:
    fitting = (run for run in _RUNS if group.width // run * group.height >= 2 * group.topk)
    return next(fitting, 1)


def _array(gradient: Tensor) -> tuple[Floats, NDArray[np.uint16]]:
    """Return a flat gradient as float32, or as the bits of bfloat16; the other array is empty."""
    if gradient.dtype == torch.bfloat16:
        return NO_F32, gradient.contiguous().view(torch.int16).numpy().view(np.uint16)

    return gradient.to(torch.float32).contiguous().numpy(), NO_BF16


def _sent(unsubtracted: Sequence[CoefficientTables], number: int, chunks: int) -> tuple[Integers, Floats]:
    """Return the coefficients to subtract from the chunks of a class: positions and values, both [chunks, n]."""
    places = [np.empty((chunks, 0), np.int64), *(tables.indices[number].numpy() for tables in unsubtracted)]
    values = [np.empty((chunks, 0), np.float32), *(tables.values[number].numpy() for tables in unsubtracted)]
    return np.concatenate(places, axis=1), np.concatenate(values, axis=1)
