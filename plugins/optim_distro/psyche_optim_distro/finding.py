"""From gradients to what is sent: what `compress` does with delta, in plain torch or compiled.

Guaranteed by each: delta <- decay (delta - what was sent and is not taken off yet) + scale g, and each chunk's `keep`
coefficients of largest magnitude, but that one may take the place of another that is as large to a 2,000th part. Not guaranteed:
equal bits from two of these, or on two machines; no replica depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from psyche_optim_distro.compiled import can_compile
from psyche_optim_distro.layout import Group, Layout
from psyche_optim_distro.precision import Precision, precision_for
from psyche_optim_distro.selection import Tables, TopFinder
from psyche_optim_distro.strips import Part, Workspace, parts_of, strips_of
from psyche_optim_distro.transform import add_decoded, blocks_of, dct_basis, encode
from psyche_optim_distro.values import Values


class Finder(Protocol):
    """Takes gradients into delta, and finds what is sent."""

    precision: Precision
    """Of the coefficients."""

    def find(
        self,
        delta: Tensor,
        gradients: Mapping[str, Tensor],
        waiting: Sequence[Tables],
        tables: Tables,
        *,
        scale: float,
        decay: float,
    ) -> None:
        """delta: float32 [layout.total], in blocks, changed in place. gradients: flat, by name; one that is missing is zero.

        waiting: what was sent and is not taken off yet. tables: for what is found.
        """


def finder_for(
    layout: Layout, values: Values, device: torch.device, *, work: Workspace, precision: Precision | None, compiled: bool
) -> Finder:
    """The fastest there is. precision: of torch's, None for what suits; compiled: whether compiled code is welcome."""
    if compiled and precision is None and device.type == "cpu" and can_compile():
        from psyche_optim_distro.compiled.finder import CompiledFinder

        return CompiledFinder(layout)

    return TorchFinder(layout, device, precision or precision_for(values, device), work=work)


class TorchFinder(Finder):
    """By torch, on any device, strip by strip. work: scratch memory."""

    def __init__(self, layout: Layout, device: torch.device, precision: Precision, *, work: Workspace) -> None:
        self.precision = precision
        self._layout = layout
        self._device = device
        self._basis = bases(layout, device)
        self._rounded_basis = {size: basis.to(precision.large) for size, basis in self._basis.items()}
        self._strips = [(strip, parts_of(strip, layout)) for strip in strips_of(layout, device)]
        self._work = work

    def find(
        self,
        delta: Tensor,
        gradients: Mapping[str, Tensor],
        waiting: Sequence[Tables],
        tables: Tables,
        *,
        scale: float,
        decay: float,
    ) -> None:
        """See the contract."""
        for group in self._layout.groups:
            finder = TopFinder(group, self._device, dtype=self.precision.of(group.height * group.width))
            for strip, parts in self._strips_of(group):
                for sent in waiting:
                    add_sent(delta, strip, sent, self._basis, factor=-1.0)
                _take_in(delta, strip, parts, gradients, scale, decay)
                coefficients = self._transformed(strip, blocks_in(delta, strip))
                finder.look(strip, coefficients, out=self._work.lend(2, coefficients.shape, dtype=coefficients.dtype))
            indices, values = tables.of(group)
            found = finder.found()
            indices.copy_(found[0])
            values.copy_(found[1])

    def _strips_of(self, group: Group) -> Iterator[tuple[Group, tuple[Part, ...]]]:
        """The strips of a group and their parameters."""
        return ((strip, parts) for strip, parts in self._strips if group.start <= strip.start < group.stop)

    def _transformed(self, strip: Group, blocks: Tensor) -> Tensor:
        """The coefficients of a strip of delta, in scratch memory."""
        basis, kind = self._basis, self.precision.of(strip.height * strip.width)
        first, second, rounded = (self._work.lend(number, blocks.shape, dtype=kind) for number in range(3))
        if kind != blocks.dtype:
            blocks, basis = rounded.copy_(blocks), self._rounded_basis
        return encode(blocks, basis[strip.height], basis[strip.width], out=(first, second))


def bases(layout: Layout, device: torch.device) -> dict[int, Tensor]:
    """The transform's matrices of a table in float32, by chunk side."""
    sizes = sorted({size for group in layout.groups for size in (group.height, group.width)})
    return {size: dct_basis(size).to(device, torch.float32) for size in sizes}


def blocks_in(delta: Tensor, strip: Group) -> Tensor:
    """A strip of delta, [chunks, height, width]."""
    return delta[strip.start : strip.stop].view(-1, strip.height, strip.width)


def add_sent(delta: Tensor, strip: Group, sent: Tables, basis: Mapping[int, Tensor], *, factor: float) -> None:
    """Add factor times the inverse DCT of what was sent to a strip of delta."""
    add_decoded(blocks_in(delta, strip), *sent.of(strip), basis[strip.height], basis[strip.width], factor=factor)


def _take_in(
    delta: Tensor, strip: Group, parts: Sequence[Part], gradients: Mapping[str, Tensor], scale: float, decay: float
) -> None:
    delta[strip.start : strip.stop].mul_(decay)
    for part in parts:
        gradient = gradients.get(part.name)
        if gradient is not None:
            natural = gradient[part.first : part.last].view(-1, strip.height, strip.columns)
            blocks = blocks_of(natural, strip.width)
            delta[part.start : part.stop].view(blocks.shape).add_(blocks, alpha=scale)
