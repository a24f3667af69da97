"""Parts of a divided optimizer in this process, for a plugin's own tests. What they are given and give back is copied.

    parts = LocalParts([MyPart(settings, shapes, number=number, parts=3) for number in range(3)])
    optimizer = MyDividedOptimizer(settings, model, parts)

The whole `OptimizerConformance` then applies to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psyche_core.interfaces.optimizer_parts import OptimizerPart, OptimizerParts, PartValues


class LocalParts(OptimizerParts):
    """Calls the parts one after the other. parts: at least one."""

    def __init__(self, parts: Sequence[OptimizerPart]) -> None:
        self._parts = parts

    @property
    def count(self) -> int:
        """Number of parts."""
        return len(self._parts)

    def call(
        self, method: str, given: Sequence[PartValues], *, into: Sequence[Mapping[str, Any]] | None = None
    ) -> list[PartValues]:
        """See `OptimizerParts.call`."""
        answers = []
        for number, (part, values) in enumerate(zip(self._parts, given, strict=True)):
            answer = part.call(method, _copy(values))
            places = {} if into is None else into[number]
            for name, tensor in answer.tensors.items():
                if name in places:
                    places[name].copy_(tensor.view(places[name].shape))
            rest = {name: tensor for name, tensor in answer.tensors.items() if name not in places}
            answers.append(_copy(PartValues(answer.numbers, rest)))
        return answers


def _copy(values: PartValues) -> PartValues:
    return PartValues(dict(values.numbers), {name: tensor.clone() for name, tensor in values.tensors.items()})
