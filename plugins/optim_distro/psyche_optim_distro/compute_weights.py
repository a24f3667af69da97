"""Writes the model's own weights: from the masters, from the look-ahead, or as the masters were some steps ago.

Tensors here are flat, as in `optimizer`: masters in the parameters' order, directions in blocked order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from psyche_core.interfaces.replay import AppliedStep
from psyche_optim_distro.chunks.layout import Layout
from psyche_optim_distro.chunks.rates import Rates, cut_by_rate, factors, step_size
from psyche_optim_distro.chunks.tiles import CPU_TILE_ELEMENTS, Part, Workspace, parts_of, tiles_of
from psyche_optim_distro.chunks.transform import as_blocks
from psyche_optim_distro.update import Updater


class ComputeWeights:
    """Writes one model's weights. parameters: of the model, by name. rates: of them. workspace: scratch memory."""

    def __init__(self, layout: Layout, parameters: Mapping[str, Tensor], rates: Rates, *, workspace: Workspace) -> None:
        self._parameters = parameters
        self._workspace = workspace
        device = next(iter(parameters.values())).device
        small = tiles_of(layout, device, elements=CPU_TILE_ELEMENTS // 2)  # float32 takes twice bfloat16's memory
        cuts = [cut for tile in small for cut in cut_by_rate(tile, layout, rates)]
        self._tiles = [(tile, parts_of(tile, layout), rate) for tile, rate in cuts]

    @torch.no_grad()
    def write(self, masters: Tensor) -> None:
        """Write cast(masters)."""
        for _, parts, _ in self._tiles:
            for part in parts:
                self._write(part, masters[part.start : part.stop])

    @torch.no_grad()
    def write_ahead(self, masters: Tensor, direction: Tensor, *, learning_rate: float) -> None:
        """Write cast(masters - lr f sign(direction)). direction: delta, or its signs in any dtype, in blocked order."""
        for tile, parts, rate in self._tiles:
            blocks = direction[tile.start : tile.stop].view(tile.blocks)
            signs = torch.sign(blocks, out=self._workspace.lend(0, tile.blocks, dtype=direction.dtype))
            ahead, own = self._workspace.lend(1, tile.shape), masters[tile.start : tile.stop].view(tile.shape)
            step = float(step_size(rate, learning_rate))
            torch.sub(as_blocks(own, tile.width), signs, alpha=step, out=as_blocks(ahead, tile.width))
            ahead = ahead.view(-1)
            for part in parts:
                self._write(part, ahead[part.start - tile.start : part.stop - tile.start])

    @torch.no_grad()
    def masters_before(
        self, masters: Tensor, undone: Sequence[AppliedStep], *, updater: Updater[object], weight_decay: float
    ) -> Tensor:
        """Return a copy of the masters as they were before these steps, up to rounding. undone: the newest step first.

        updater: its updates must depend only on payloads and rate. Needs twice the masters' memory. Raises PayloadRejected.
        """
        found = masters.clone()
        moved = torch.empty_like(masters)
        for step in undone:
            if not step.payloads:
                continue  # such a step changes nothing

            moved.zero_()
            decoded = [updater.decode(payload) for payload in step.payloads]
            updater.update(moved, decoded, learning_rate=step.learning_rate, weight_decay=weight_decay)
            found.sub_(moved)
            for tile, _, rate in self._tiles:
                kept, _ = factors(rate, learning_rate=step.learning_rate, weight_decay=weight_decay)
                if kept != 1:
                    found[tile.start : tile.stop].div_(float(kept))
        return found

    def _write(self, part: Part, values: Tensor) -> None:
        """Cast a part of a flat tensor into the weights."""
        weights = self._parameters[part.name].data
        if weights.is_contiguous():
            weights.view(-1)[part.first : part.last].copy_(values)
        else:
            places = torch.arange(part.first, part.last, device=weights.device)
            weights[torch.unravel_index(places, weights.shape)] = values.to(weights.dtype)
