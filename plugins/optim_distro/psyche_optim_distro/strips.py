"""How much of a flat buffer is worked on at a time, and which parameters lie there.

Decided here: on a CPU a strip, its transform and a scratch copy fit into a core's second-level cache together, so memory is read
once per step and no buffer of the model's size is needed besides masters and delta; an accelerator has its whole groups at once,
since each call costs it more than the memory.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

import torch

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
