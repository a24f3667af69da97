"""From accepted payloads to moved masters: what `apply` does with them, in plain torch or compiled.

Guaranteed by each: masters <- masters decay - learning_rate direction, two roundings per element, where the direction is -1, 0 or +1, and
the same on every replica, whichever of these moved it. Not guaranteed: that what one has read can be used by another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from psyche_optim_distro import codec
from psyche_optim_distro.aggregation import Aggregator, TileVotes
from psyche_optim_distro.backends.numba import numba_available
from psyche_optim_distro.layout import Layout
from psyche_optim_distro.top_k import Selection
from psyche_optim_distro.tiles import Workspace
from psyche_optim_distro.value_format import ValueFormat

Decoded = TypeVar("Decoded")


class Updater(Protocol, Generic[Decoded]):
    """Moves the masters of one parameter table."""

    def decode(self, payload: bytes) -> Decoded:
        """Decode against our table; any thread. Raises PayloadRejected, never anything else."""

    def update(self, masters: Tensor, decoded: Sequence[Decoded], *, decay: float, learning_rate: float) -> None:
        """masters: float32 [layout.total], moved in place. read: of at least one payload, in any order.

        Raises ValueError for too many payloads.
        """


def updater_for(layout: Layout, values: ValueFormat, device: torch.device, *, work: Workspace, compiled: bool) -> Updater[Any]:
    """The fastest there is for these values. work: scratch memory; compiled: whether compiled code is welcome."""
    if compiled and values is ValueFormat.SIGNS and device.type == "cpu" and numba_available():
        from psyche_optim_distro.backends.numba.update import NumbaUpdater

        return NumbaUpdater(layout)

    aggregator = Aggregator(layout, device, work=work)
    return TorchVoteUpdater(layout, aggregator) if values is ValueFormat.SIGNS else TorchValueUpdater(layout, aggregator, values)


class TorchVoteUpdater(Updater[TileVotes]):
    """Signs, by torch on any device."""

    def __init__(self, layout: Layout, aggregator: Aggregator) -> None:
        self._layout = layout
        self._aggregator = aggregator

    def decode(self, payload: bytes) -> TileVotes:
        """The votes, by tiles."""
        return self._aggregator.votes(codec.decode(self._layout, payload, values=ValueFormat.SIGNS))

    def update(self, masters: Tensor, decoded: Sequence[TileVotes], *, decay: float, learning_rate: float) -> None:
        """See the contract."""
        for tile, direction in self._aggregator.vote_directions(decoded):
            _apply_direction(masters[tile.start : tile.stop], direction, decay, learning_rate)


class TorchValueUpdater(Updater[Selection]):
    """Values, by torch on any device."""

    def __init__(self, layout: Layout, aggregator: Aggregator, values: ValueFormat) -> None:
        self._layout = layout
        self._aggregator = aggregator
        self._values = values

    def decode(self, payload: bytes) -> Selection:
        """The coefficients."""
        return codec.decode(self._layout, payload, values=self._values)

    def update(self, masters: Tensor, decoded: Sequence[Selection], *, decay: float, learning_rate: float) -> None:
        """See the contract."""
        for tile, direction in self._aggregator.value_directions(decoded):
            _apply_direction(masters[tile.start : tile.stop], direction, decay, learning_rate)


def _apply_direction(masters: Tensor, direction: Tensor, decay: float, learning_rate: float) -> None:
    if decay != 1:
        masters.mul_(decay)
    masters.sub_(direction, alpha=learning_rate)
