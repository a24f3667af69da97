"""Cuts flat buffers into tiles, and lends scratch memory for one tile at a time.

On a CPU a tile, its transform and a scratch copy fit into a core's second-level cache together. So each step reads memory once,
and needs no buffer of the model's size besides masters and delta. An accelerator gets whole groups as tiles, since there each
call costs more than the memory does.

On a CPU scratch memory comes from a few buffers that are reused, since allocating memory costs as much time as the work done in
it. An accelerator's allocator reuses blocks by itself.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from psyche_optim_distro.chunks.layout import Group, Layout

CPU_TILE_ELEMENTS = 2**19
"""Largest number of float32 elements of a tile on a CPU: 2 MiB."""


@dataclass(frozen=True, slots=True)
class Part:
    """The intersection of a tile and a parameter: `flat[start:stop]` is `parameter.view(-1)[first:last]`."""

    name: str
    start: int
    stop: int
    first: int
    last: int


def tiles_of(layout: Layout, device: torch.device, *, elements: int = CPU_TILE_ELEMENTS) -> tuple[Group, ...]:
    """Return all groups cut into tiles that suit the device, in memory order. elements: limit per tile on a CPU."""
    limit = elements if device.type == "cpu" else max(1, layout.total)
    return tuple(tile for group in layout.groups for tile in group.tiles(limit))


def parts_of(tile: Group, layout: Layout) -> tuple[Part, ...]:
    """Return the parts of parameters that a tile contains, in memory order."""
    parameters = sorted((entry for entry in layout.parameters if math.prod(entry.shape)), key=lambda entry: entry.start)
    first = bisect.bisect_right(parameters, tile.start, key=lambda entry: entry.start) - 1
    parts = []
    for entry in parameters[first:]:
        if entry.start >= tile.stop:
            break
        start, stop = max(entry.start, tile.start), min(entry.stop, tile.stop)
        parts.append(Part(entry.name, start, stop, start - entry.start, stop - entry.start))
    return tuple(parts)


class Workspace:
    """Four scratch buffers for one tile at a time. A buffer's tensor is valid until the same buffer number is lent again.

    On a CPU a buffer grows to the largest size lent so far. device: of the buffers.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers = [torch.empty(0, dtype=torch.uint8) for _ in range(4)]

    def lend(self, number: int, shape: Sequence[int], *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return an uninitialised tensor of this shape in buffer `number`, 0 to 3."""
        if self._device.type != "cpu":
            return torch.empty(*shape, device=self._device, dtype=dtype)

        size = math.prod(shape) * dtype.itemsize
        if self._buffers[number].numel() < size:
            self._buffers[number] = torch.empty(size, dtype=torch.uint8)
        return self._buffers[number][:size].view(dtype).view(*shape)
