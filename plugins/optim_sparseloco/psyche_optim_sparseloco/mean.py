"""The mean of what members sent for each weight: integers alone, so that every replica has the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from psyche_optim_sparseloco.codec import Update
from psyche_optim_sparseloco.layout import Layout, Parameter

_COUNT_BITS = 10
"""Bits for a number of results, at most MAX_CLIENTS."""

_BLOCK = 1 << 18
"""Elements whose sums are made at once: 2 MB, which stay in a processor's cache."""


def means(updates: Sequence[Update], layout: Layout, device: torch.device) -> Iterator[tuple[Parameter, Tensor, Tensor]]:
    """Yield a parameter, places in it, int64 [n], and what members sent for them in the mean, in whole units, float32 [n].

    Means are rounded half away from zero, and at most 2**16, which float32 holds exactly. Places for which nothing was sent are
    left out. No place comes twice, and they are in no order. A parameter may come several times.
    """
    if not updates:
        return

    blocks = [
        (entry, start, min(start + _BLOCK, entry.stop))
        for entry in layout.parameters
        for start in range(entry.start, entry.stop, _BLOCK)
    ]
    starts = [np.searchsorted(update.positions, [start for _, start, _ in blocks]).tolist() for update in updates]
    ends = [np.searchsorted(update.positions, [stop for _, _, stop in blocks]).tolist() for update in updates]
    longest = max((stop - start for _, start, stop in blocks), default=0)
    sums = torch.zeros(longest, dtype=torch.int64, device=device)  # with counts in their low bits
    last = torch.zeros_like(sums)  # one of the values for a place
    for number, (entry, start, _) in enumerate(blocks):
        parts = [slice(first[number], end[number]) for first, end in zip(starts, ends, strict=True)]
        positions = [update.positions[part] for update, part in zip(updates, parts, strict=True)]
        amounts = [update.amounts[part] for update, part in zip(updates, parts, strict=True)]
        places = torch.from_numpy(np.concatenate(positions)).to(device) - start
        sums.scatter_add_(0, places, (torch.from_numpy(np.concatenate(amounts)).to(device, torch.int64) << _COUNT_BITS) + 1)
        order = torch.arange(places.numel(), device=device)
        last.scatter_(0, places, order)
        places = places[last.gather(0, places) == order]
        yield entry, places + (start - entry.start), _rounded(sums.gather(0, places))
        sums.scatter_(0, places, 0)


def _rounded(packed: Tensor) -> Tensor:
    """The means of packed sums, float32."""
    total, count = packed >> _COUNT_BITS, packed & ((1 << _COUNT_BITS) - 1)
    rounded = total.sign() * torch.div(2 * total.abs() + count, 2 * count, rounding_mode="floor")
    return rounded.to(torch.float32)
