"""Contract for the first half of a step: adds gradients to delta and selects the coefficients to send.

Guaranteed by each implementation:

    delta <- decay (delta - results sent and not subtracted yet) + scale factor gradient

and selects the `topk` coefficients of largest magnitude of each chunk. A coefficient may replace another that is larger by less
than a 2,000th part. With a preconditioner, factor times the gradient is divided as `preconditioner` describes. Not guaranteed:
equal bits from two implementations or on two machines. No other replica depends on these bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from psyche_optim_distro.chunks.layout import Group, Layout
from psyche_optim_distro.chunks.precision import Precision
from psyche_optim_distro.chunks.transform import add_decoded, dct_basis
from psyche_optim_distro.payload.top_k import CoefficientTables
from psyche_optim_distro.preconditioner import Preconditioner


class Compressor(Protocol):
    """Adds gradients to delta and selects the coefficients to send."""

    precision: Precision
    """Precision of the coefficients."""

    def compress(
        self,
        delta: Tensor,
        gradients: Mapping[str, Tensor],
        unsubtracted: Sequence[CoefficientTables],
        tables: CoefficientTables,
        *,
        scale: float,
        decay: float,
        factor: float = 1.0,
        preconditioner: Preconditioner | None = None,
    ) -> None:
        """Update delta and fill `tables`, as the module describes.

        delta: float32 [layout.total] in blocked order (`blocked_buffer`), changed in place. gradients: by parameter name, flat
        [elements]; a missing one counts as zero. unsubtracted: sent results that delta still contains. tables: output.
        scale: factor of what is added. decay: factor of the old delta. factor: of the gradients, from clipping. preconditioner:
        the gradients of this step are added to its mean squares.
        """


def dct_bases(layout: Layout, device: torch.device) -> dict[int, Tensor]:
    """Return the float32 DCT matrices [size, size] of all chunk sides of a table, by size."""
    sizes = sorted({size for group in layout.groups for size in (group.height, group.width)})
    return {size: dct_basis(size).to(device, torch.float32) for size in sizes}


def delta_blocks(delta: Tensor, tile: Group) -> Tensor:
    """Return a view of one tile of delta as [chunks, height, width]. delta: [layout.total] in blocked order."""
    return delta[tile.start : tile.stop].view(-1, tile.height, tile.width)


def add_sent(delta: Tensor, tile: Group, sent: CoefficientTables, basis: Mapping[int, Tensor], *, factor: float) -> None:
    """Add factor times the inverse DCT of sent coefficients to one tile of delta, in place. basis: `dct_bases`."""
    add_decoded(delta_blocks(delta, tile), *sent.of(tile), basis[tile.height], basis[tile.width], factor=factor)
