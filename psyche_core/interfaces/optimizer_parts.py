"""Contract of an optimizer whose state is divided among the ranks of one client, see `OptimizerRegistration.divide`.

Rank 0 has the `Optimizer` itself, which the client uses as any other. What it would hold and compute is in `OptimizerPart`s, one
on each rank, rank 0's among them. It reaches them through `OptimizerParts.call`: one method by name, on all ranks at once, with
numbers and tensors for each. No torch import here: tensors are opaque.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Number = int | float | bool | str


@dataclass(frozen=True, slots=True)
class PartValues:
    """What a part is given, or what it gives back.

    numbers: by name; floats are finite. tensors: by name, of any shape and dtype; a receiver may get them on another device.
    """

    numbers: Mapping[str, Number] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)


class OptimizerPart(ABC):
    """One rank's part of an optimizer. One thread calls it at a time."""

    @abstractmethod
    def call(self, method: str, given: PartValues) -> PartValues:
        """Do what `method` names. Not allowed: to fail for anything that the optimizer on rank 0 can check before.

        An exception ends all ranks. Given tensors are only read, and not kept. Returned ones are read before the next call.
        """


class OptimizerParts(ABC):
    """The parts of one optimizer, as rank 0 sees them."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of parts, at least 1: one for each rank."""

    @abstractmethod
    def call(
        self, method: str, given: Sequence[PartValues], *, into: Sequence[Mapping[str, Any]] | None = None
    ) -> list[PartValues]:
        """Call a method of every part and return what they give back, in order. The parts work at the same time.

        given: one for each part. into: for each part contiguous tensors by name; a returned tensor of that name, with as many
        elements of the same dtype, is written there and is not among the answers. May be called by several threads, which wait
        for one another. Raises RanksLost if a rank has ended.
        """
