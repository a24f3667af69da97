"""Contract for the second half of a step: applies accepted payloads to the masters.

Guaranteed by each implementation:

    masters <- masters decay - step direction

with two roundings per element; decay and step are the float32 numbers of `rates.factors` for the element's parameter. The
direction is -1, 0 or +1, or what a second stage computes from the decoded mean; then step times direction is rounded, too. It has
the same bits on every replica, whichever implementation runs there. Not guaranteed: that one implementation can use what another
one has decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from psyche_optim_distro.chunks.layout import Group
from psyche_optim_distro.payload.coefficients import Coefficients

Decoded = TypeVar("Decoded")


class Updater(Protocol, Generic[Decoded]):
    """Decodes payloads and moves the masters of one parameter table."""

    def decode(self, payload: bytes) -> Decoded:
        """Decode a payload against our own table. May run in any thread. Raises PayloadRejected, never anything else."""

    def take(self, coefficients: Coefficients) -> Decoded:
        """Return what `decode` would, for coefficients of our own table that are decoded and checked already."""

    def update(self, masters: Tensor, decoded: Sequence[Decoded], *, learning_rate: float, weight_decay: float) -> None:
        """Move the masters, as the module describes.

        masters: float32 [layout.total], changed in place. decoded: results of `decode` for at least one payload, in any order.
        Raises ValueError for more than MAX_CLIENTS payloads.
        """


class SecondStage(Protocol):
    """Makes the direction of a step from the decoded mean, tile by tile, with the same bits on every replica."""

    def begin(self) -> None:
        """Begin an update. Call this before the `direction` of its tiles."""

    def direction(self, update: Tensor, tile: Group) -> Tensor:
        """Return the direction of a tile. update: the decoded mean, float32 [elements of the tile], which may be changed."""
