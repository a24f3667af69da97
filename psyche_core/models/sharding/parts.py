"""The parts of a divided optimizer on all ranks, as rank 0's optimizer sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psyche_core.interfaces.optimizer_parts import OptimizerParts, PartValues
from psyche_core.models.sharding.controller import RankController


class RankParts(OptimizerParts):
    """See the module. number: from `RankController.divide_optimizer`. count: of ranks."""

    def __init__(self, controller: RankController, *, number: int, count: int) -> None:
        self._controller = controller
        self._number = number
        self._count = count

    @property
    def count(self) -> int:
        """Number of ranks."""
        return self._count

    def call(
        self, method: str, given: Sequence[PartValues], *, into: Sequence[Mapping[str, Any]] | None = None
    ) -> list[PartValues]:
        """See `OptimizerParts.call`. Raises ValueError for other than one value, or one mapping, for each rank."""
        places: Sequence[Mapping[str, Any]] = [{}] * self._count if into is None else into
        if len(given) != self._count or len(places) != self._count:
            message = f"there are {self._count} parts, got values for {len(given)} and places for {len(places)}"
            raise ValueError(message)
        return self._controller.call_parts(self._number, method, given, into=places)
