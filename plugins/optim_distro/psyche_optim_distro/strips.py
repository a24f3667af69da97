"""How much of a flat buffer is worked on at a time, and which parameters lie there.

Decided here: on a CPU a strip, its transform and a scratch copy fit into a core's second-level cache together, so memory is read
once per step and no buffer of the model's size is needed besides masters and delta; an accelerator has its whole groups at once,
since each call costs it more than the memory. What a strip needs for a moment is lent from a few buffers on a CPU, where fresh
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

CPU_ELEMENTS = 2**18
"""Float32 elements of a strip on a CPU: 1 MiB."""


@dataclass(frozen=True, slots=True)
class Part:
    """Where a strip and a parameter meet: `flat[start:stop]` is `parameter.view(-1)[first:last]`."""

    name: str
    start: int
    stop: int
    first: int
    last: int


def strips_of(layout: Layout, device: torch.device) -> tuple[Group, ...]:
    """All groups in strips that suit the device, in the order of memory."""
    limit = CPU_ELEMENTS if device.type == "cpu" else max(1, layout.total)
    return tuple(strip for group in layout.groups for strip in group.strips(limit))


def parts_of(strip: Group, layout: Layout) -> tuple[Part, ...]:
    """The parameters of a strip, in the order of memory."""
    parameters = sorted((entry for entry in layout.parameters if math.prod(entry.shape)), key=lambda entry: entry.start)
    first = bisect.bisect_right(parameters, strip.start, key=lambda entry: entry.start) - 1
    parts = []
    for entry in parameters[first:]:
        if entry.start >= strip.stop:
            break
        start, stop = max(entry.start, strip.start), min(entry.stop, strip.stop)
        parts.append(Part(entry.name, start, stop, start - entry.start, stop - entry.start))
    return tuple(parts)


class Workspace:
    """Scratch memory for one strip at a time: three float32 buffers, lent by number until the next loan of the same number."""

    def __init__(self, strips: Sequence[Group], device: torch.device) -> None:
        self._device = device
        size = max((strip.stop - strip.start for strip in strips), default=0) if device.type == "cpu" else 0
        self._buffers = [torch.empty(size) for _ in range(3)]

    def lend(self, number: int, shape: Sequence[int]) -> Tensor:
        """float32 memory of that shape with anything in it, no larger than the largest strip."""
        if self._device.type != "cpu":
            return torch.empty(*shape, device=self._device)

        return self._buffers[number][: math.prod(shape)].view(*shape)
