"""How much of a flat buffer is worked on at a time, and which parameters lie there.

Decided here: on a CPU a tile, its transform and a scratch copy fit into a core's second-level cache together, so memory is read
once per step and no buffer of the model's size is needed besides masters and delta; an accelerator has its whole groups at once,
since each call costs it more than the memory. What a tile needs for a moment is lent from a few buffers on a CPU, where fresh
memory costs as much as the work done in it; an accelerator's allocator keeps such blocks by itself.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from psyche_optim_distro.layout import Group, Layout

CPU_ELEMENTS = 2**19
"""Float32 elements of a tile on a CPU, at most: 2 MiB."""


@dataclass(frozen=True, slots=True)
class Part:
    """Where a tile and a parameter meet: `flat[start:stop]` is `parameter.view(-1)[first:last]`."""

    name: str
    start: int
    stop: int
    first: int
    last: int


def tiles_of(layout: Layout, device: torch.device, *, elements: int = CPU_ELEMENTS) -> tuple[Group, ...]:
    """All groups in tiles that suit the device, in the order of memory. elements: most of a tile on a CPU."""
    limit = elements if device.type == "cpu" else max(1, layout.total)
    return tuple(tile for group in layout.groups for tile in group.tiles(limit))


def parts_of(tile: Group, layout: Layout) -> tuple[Part, ...]:
    """The parameters of a tile, in the order of memory."""
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
    """Scratch memory for one tile at a time: four buffers, lent by number until the next loan of the same number.

    On a CPU a buffer is as large as the largest loan of it so far.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers = [torch.empty(0, dtype=torch.uint8) for _ in range(4)]

    def lend(self, number: int, shape: Sequence[int], *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Memory of that shape with anything in it."""
        if self._device.type != "cpu":
            return torch.empty(*shape, device=self._device, dtype=dtype)

        size = math.prod(shape) * dtype.itemsize
        if self._buffers[number].numel() < size:
            self._buffers[number] = torch.empty(size, dtype=torch.uint8)
        return self._buffers[number][:size].view(dtype).view(*shape)
