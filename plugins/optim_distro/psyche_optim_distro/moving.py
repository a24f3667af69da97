"""From accepted payloads to moved masters: what `apply` does with them, in plain torch or compiled.

Guaranteed by each: masters <- masters keep - rate direction, two roundings per element, where the direction is -1, 0 or +1, and
the same on every replica, whichever of these moved it. Not guaranteed: that what one has read can be used by another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from psyche_optim_distro import codec
from psyche_optim_distro.aggregation import Aggregator, Votes
from psyche_optim_distro.compiled import can_compile
from psyche_optim_distro.layout import Layout
from psyche_optim_distro.selection import Selection
from psyche_optim_distro.strips import Workspace
from psyche_optim_distro.values import Values

Read = TypeVar("Read")


class Mover(Protocol, Generic[Read]):
    """Moves the masters of one parameter table."""

    def read(self, payload: bytes) -> Read:
        """Decode against our table; any thread. Raises PayloadRejected, never anything else."""

    def move(self, masters: Tensor, read: Sequence[Read], *, keep: float, rate: float) -> None:
        """masters: float32 [layout.total], moved in place. read: of at least one payload, in any order.

        Raises ValueError for too many payloads.
        """


def mover_for(layout: Layout, values: Values, device: torch.device, *, work: Workspace, compiled: bool) -> Mover[Any]:
    """The fastest there is for these values. work: scratch memory; compiled: whether compiled code is welcome."""
    if compiled and values is Values.SIGNS and device.type == "cpu" and can_compile():
        from psyche_optim_distro.compiled.mover import CompiledMover

        return CompiledMover(layout)

    aggregator = Aggregator(layout, device, work=work)
    return VoteMover(layout, aggregator) if values is Values.SIGNS else ValueMover(layout, aggregator, values)


class VoteMover(Mover[Votes]):
    """Signs, by torch on any device."""

    def __init__(self, layout: Layout, aggregator: Aggregator) -> None:
        self._layout = layout
        self._aggregator = aggregator

    def read(self, payload: bytes) -> Votes:
        """The votes, by strips."""
        return self._aggregator.votes(codec.decode(self._layout, payload, values=Values.SIGNS))

    def move(self, masters: Tensor, read: Sequence[Votes], *, keep: float, rate: float) -> None:
        """See the contract."""
        for strip, direction in self._aggregator.counted(read):
            _move(masters[strip.start : strip.stop], direction, keep, rate)


class ValueMover(Mover[Selection]):
    """Values, by torch on any device."""

    def __init__(self, layout: Layout, aggregator: Aggregator, values: Values) -> None:
        self._layout = layout
        self._aggregator = aggregator
        self._values = values

    def read(self, payload: bytes) -> Selection:
        """The coefficients."""
        return codec.decode(self._layout, payload, values=self._values)

    def move(self, masters: Tensor, read: Sequence[Selection], *, keep: float, rate: float) -> None:
        """See the contract."""
        for strip, direction in self._aggregator.averaged(read):
            _move(masters[strip.start : strip.stop], direction, keep, rate)


def _move(masters: Tensor, direction: Tensor, keep: float, rate: float) -> None:
    if keep != 1:
        masters.mul_(keep)
    masters.sub_(direction, alpha=rate)
