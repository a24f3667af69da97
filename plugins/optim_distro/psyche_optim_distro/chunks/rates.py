"""Parts of the table whose parameters have the same rates, see `psyche_core.interfaces.rate_groups`.

Chunks, payloads and memory order do not depend on rates. The two factors of a step are computed once per tensor, in float64, and
rounded to float32, so that all replicas and both backends multiply by the same numbers.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from psyche_core.interfaces.rate_groups import TensorRate
from psyche_optim_distro.chunks.layout import Group, Layout

Rates = Mapping[str, TensorRate]
"""By parameter name. A parameter that is missing has the factors 1."""

_PLAIN = TensorRate()


def cut_by_rate(tile: Group, layout: Layout, rates: Rates) -> tuple[tuple[Group, TensorRate], ...]:
    """Return a group or a tile of it, cut where the rates change, in memory order. Each part is whole rows of blocks."""
    parameters = sorted((entry for entry in layout.parameters if math.prod(entry.shape)), key=lambda entry: entry.start)
    first = bisect.bisect_right(parameters, tile.start, key=lambda entry: entry.start) - 1
    parts: list[tuple[Group, TensorRate]] = []
    row, across = tile.height * tile.columns, tile.columns // tile.width
    for entry in parameters[first:]:
        if entry.start >= tile.stop:
            break
        rate = rates.get(entry.name, _PLAIN)
        start, stop = max(entry.start, tile.start), min(entry.stop, tile.stop)
        if parts and parts[-1][1] == rate:
            start = parts.pop()[0].start
        begin = (start - tile.start) // row
        part = replace(tile, start=start, row_blocks=(stop - start) // row, first_chunk=tile.first_chunk + begin * across)
        parts.append((part, rate))
    return tuple(parts)


def factors(rate: TensorRate, *, learning_rate: float, weight_decay: float) -> tuple[np.float32, np.float32]:
    """Return the factor of the masters and the size of the step, in float32."""
    return np.float32(rate.kept(learning_rate, weight_decay)), step_size(rate, learning_rate)


def step_size(rate: TensorRate, learning_rate: float) -> np.float32:
    """Return the size of the step in float32, which masters and look-ahead both use."""
    return np.float32(rate.step(learning_rate))
