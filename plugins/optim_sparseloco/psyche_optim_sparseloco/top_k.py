"""Chooses what is sent: the largest values of each chunk."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from psyche_optim_sparseloco.layout import IntArray, Layout, Parameter

_GROUPS = 8
"""Groups of a chunk for each value that it sends. Its largest values are in those with the largest maxima: an eighth of it."""


def select(values: Tensor, layout: Layout, *, smallest: float) -> tuple[IntArray, IntArray]:
    """Positions of each chunk's largest magnitudes, int64 [n] ascending, and how many each chunk has, int64 [chunks].

    values: [layout.total]. A chunk has at most its quota, and none below `smallest`.
    """
    found = [_of_parameter(values, layout, parameter) for parameter in layout.parameters if parameter.stop > parameter.start]
    positions = torch.cat(found) if found else torch.zeros(0, dtype=torch.int64, device=values.device)
    positions = positions[values.gather(0, positions).abs() >= smallest].sort().values
    chosen: IntArray = positions.cpu().numpy()
    chunks = np.searchsorted(layout.starts, chosen, side="right") - 1
    return chosen, np.bincount(chunks, minlength=layout.starts.size).astype(np.int64)


def _of_parameter(values: Tensor, layout: Layout, parameter: Parameter) -> Tensor:
    """Positions of one parameter's largest magnitudes, int64, in no order."""
    own = values[parameter.start : parameter.stop].abs()
    whole = own.numel() // layout.chunk_size * layout.chunk_size
    parts = []
    for first, rows in ((0, own[:whole].view(-1, layout.chunk_size)), (whole, own[whole:].view(1, -1))):
        if rows.numel():
            begin = torch.arange(rows.shape[0], device=values.device).unsqueeze(1) * rows.shape[1]
            parts.append((_largest(rows, layout.topk) + begin).view(-1) + (parameter.start + first))
    return torch.cat(parts)


def _largest(rows: Tensor, topk: int) -> Tensor:
    """Columns of each row's largest values, at most `topk`, int64 [n, values], in no order. rows: [n, size], no negative ones.

    Which of equal values are taken is not said. Columns that differ by a multiple of the number of groups are a group.
    """
    size, groups = rows.shape[1], topk * _GROUPS
    if size % groups or size == groups:
        return rows.topk(min(topk, size), dim=1, sorted=False).indices

    grouped = rows.view(rows.shape[0], size // groups, groups)
    chosen = grouped.amax(dim=1).topk(topk, dim=1, sorted=False).indices
    candidates = grouped.gather(2, chosen.unsqueeze(1).expand(-1, size // groups, -1))
    found = candidates.view(rows.shape[0], -1).topk(topk, dim=1, sorted=False).indices
    return found // topk * groups + chosen.gather(1, found % topk)
