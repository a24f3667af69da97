"""The second stage `clip`: a direction that is smaller than 1 where the senders' mean is small, without any state.

For each chunk of n elements, with the decoded mean u:

    limit = 2 sum |u| / n        direction = u / limit, at most 1 in magnitude

So the largest elements move by the whole step, as with the sign, and elements near zero, whose sign is noise, by little. The
limit is twice the mean magnitude of the chunk, about 1.6 times its root mean square. A factor of a chunk cancels, so values and
signs of senders give directions of the same size.

u has 8 significant bits and is an integer of magnitude <= 2**24 times a power of two that is the same in the whole chunk, see
`integer_idct`. So the sum is exact in float64 in any order, for up to 2**29 elements. What follows are single IEEE operations:
the quotient in float64, its rounding to float32, and u / limit in float32. Hence all devices, backends and numbers of threads
give the same bits. A chunk of zeros has the direction 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from psyche_optim_distro.chunks.layout import Group
from psyche_optim_distro.chunks.tiles import Workspace


class Clip:
    """The second stage `clip` by torch. workspace: scratch memory; buffer 1 is used."""

    def __init__(self, *, workspace: Workspace) -> None:
        self._workspace = workspace

    def begin(self) -> None:
        """Do nothing, because nothing depends on earlier updates."""

    def direction(self, update: Tensor, tile: Group) -> Tensor:
        """Replace a tile's update by its direction, and return it. update: float32 [elements of the tile]."""
        blocks = update.view(tile.row_blocks, tile.height, -1, tile.width)
        magnitudes = torch.abs(blocks, out=self._workspace.lend(1, blocks.shape))
        sums = magnitudes.sum(dim=(1, 3), dtype=torch.float64)
        limits = (2 * sums / (tile.height * tile.width)).to(torch.float32)
        limits.masked_fill_(limits == 0, 1.0)
        blocks.div_(limits[:, None, :, None]).clamp_(-1, 1)
        return update
