"""From gradients to what is sent: what `compress` does with delta, in plain torch or compiled.

Guaranteed by each: delta <- decay (delta - what was sent and is not taken off yet) + scale g, and each chunk's `topk`
coefficients of largest magnitude, but that one may take the place of another that is as large to a 2,000th part. Not guaranteed:
equal bits from two of these, or on two machines; no replica depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from psyche_optim_distro.backends.numba import numba_available
from psyche_optim_distro.layout import Group, Layout
from psyche_optim_distro.precision import Precision, precision_for
from psyche_optim_distro.top_k import CoefficientTables, TopKSelector
from psyche_optim_distro.tiles import Part, Workspace, parts_of, tiles_of
from psyche_optim_distro.transform import add_decoded, blocks_of, dct_basis, encode
from psyche_optim_distro.value_format import ValueFormat


class Compressor(Protocol):
    """Takes gradients into delta, and finds what is sent."""

    precision: Precision
    """Of the coefficients."""

    def compress(
        self,
        delta: Tensor,
        gradients: Mapping[str, Tensor],
        waiting: Sequence[CoefficientTables],
        tables: CoefficientTables,
        *,
        scale: float,
        decay: float,
    ) -> None:
        """delta: float32 [layout.total], in blocks, changed in place. gradients: flat, by name; one that is missing is zero.

        waiting: what was sent and is not taken off yet. tables: for what is found.
        """


def compressor_for(
    layout: Layout, values: ValueFormat, device: torch.device, *, work: Workspace, precision: Precision | None, compiled: bool
) -> Compressor:
    """The fastest there is. precision: of torch's, None for what suits; compiled: whether compiled code is welcome."""
    if compiled and precision is None and device.type == "cpu" and numba_available():
        from psyche_optim_distro.backends.numba.compress import NumbaCompressor

        return NumbaCompressor(layout)

    return TorchCompressor(layout, device, precision or precision_for(values, device), work=work)


class TorchCompressor(Compressor):
    """By torch, on any device, tile by tile. work: scratch memory."""

    def __init__(self, layout: Layout, device: torch.device, precision: Precision, *, work: Workspace) -> None:
        self.precision = precision
        self._layout = layout
        self._device = device
        self._basis = bases(layout, device)
        self._rounded_basis = {size: basis.to(precision.large) for size, basis in self._basis.items()}
        self._tiles = [(tile, parts_of(tile, layout)) for tile in tiles_of(layout, device)]
        self._work = work

    def compress(
        self,
        delta: Tensor,
        gradients: Mapping[str, Tensor],
        waiting: Sequence[CoefficientTables],
        tables: CoefficientTables,
        *,
        scale: float,
        decay: float,
    ) -> None:
        """See the contract."""
        for group in self._layout.groups:
            finder = TopKSelector(group, self._device, dtype=self.precision.of(group.height * group.width))
            for tile, parts in self._tiles_of(group):
                for sent in waiting:
                    add_sent(delta, tile, sent, self._basis, factor=-1.0)
                _take_in(delta, tile, parts, gradients, scale, decay)
                coefficients = self._transformed(tile, blocks_in(delta, tile))
                finder.look(tile, coefficients, out=self._work.lend(2, coefficients.shape, dtype=coefficients.dtype))
            indices, values = tables.of(group)
            found = finder.found()
            indices.copy_(found[0])
            values.copy_(found[1])

    def _tiles_of(self, group: Group) -> Iterator[tuple[Group, tuple[Part, ...]]]:
        """The tiles of a group and their parameters."""
        return ((tile, parts) for tile, parts in self._tiles if group.start <= tile.start < group.stop)

    def _transformed(self, tile: Group, blocks: Tensor) -> Tensor:
        """The coefficients of a tile of delta, in scratch memory."""
        basis, kind = self._basis, self.precision.of(tile.height * tile.width)
        first, second, rounded = (self._work.lend(number, blocks.shape, dtype=kind) for number in range(3))
        if kind != blocks.dtype:
            blocks, basis = rounded.copy_(blocks), self._rounded_basis
        return encode(blocks, basis[tile.height], basis[tile.width], out=(first, second))


def bases(layout: Layout, device: torch.device) -> dict[int, Tensor]:
    """The transform's matrices of a table in float32, by chunk side."""
    sizes = sorted({size for group in layout.groups for size in (group.height, group.width)})
    return {size: dct_basis(size).to(device, torch.float32) for size in sizes}


def blocks_in(delta: Tensor, tile: Group) -> Tensor:
    """A tile of delta, [chunks, height, width]."""
    return delta[tile.start : tile.stop].view(-1, tile.height, tile.width)


def add_sent(delta: Tensor, tile: Group, sent: CoefficientTables, basis: Mapping[int, Tensor], *, factor: float) -> None:
    """Add factor times the inverse DCT of what was sent to a tile of delta."""
    add_decoded(blocks_in(delta, tile), *sent.of(tile), basis[tile.height], basis[tile.width], factor=factor)


def _take_in(
    delta: Tensor, tile: Group, parts: Sequence[Part], gradients: Mapping[str, Tensor], scale: float, decay: float
) -> None:
    delta[tile.start : tile.stop].mul_(decay)
    for part in parts:
        gradient = gradients.get(part.name)
        if gradient is not None:
            natural = gradient[part.first : part.last].view(-1, tile.height, tile.columns)
            blocks = blocks_of(natural, tile.width)
            delta[part.start : part.stop].view(blocks.shape).add_(blocks, alpha=scale)
