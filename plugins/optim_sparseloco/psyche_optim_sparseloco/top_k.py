"""Chooses what is sent: the largest values of each chunk."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from psyche_optim_sparseloco.layout import IntArray, Layout, Parameter


def select(values: Tensor, layout: Layout, *, smallest: float) -> tuple[IntArray, IntArray]:
    """Positions of each chunk's largest magnitudes, int64 [n] ascending, and how many each chunk has, int64 [chunks].

    values: [layout.total]. A chunk has at most its quota, and none below `smallest`.
    """
    found = [_of_parameter(values, layout, parameter) for parameter in layout.parameters if parameter.stop > parameter.start]
    positions = torch.cat(found) if found else torch.zeros(0, dtype=torch.int64, device=values.device)
    positions = positions[values[positions].abs() >= smallest].sort().values
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
            indices = rows.topk(min(layout.topk, rows.shape[1]), dim=1, sorted=False).indices
            begin = torch.arange(rows.shape[0], device=values.device).unsqueeze(1) * rows.shape[1]
            parts.append((indices + begin).view(-1) + (parameter.start + first))
    return torch.cat(parts)
