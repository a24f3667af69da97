"""What one rank holds of a divided optimizer: the `DistroOptimizer` of its slices, called by names of methods.

    method      given                                             gives back
    slices      kind; names                                       its slices of these tensors, flat
    replace     kind; tensors by name, flat                       -
    forget      -                                                 -
    bound       -                                                 bound, of delta's norm
    select      step, learning_rate, factor, added; gradients     chunks, indices, values of the selection
    apply       step, learning_rate, own_accepted, count; votes   -
    weights     -                                                 its slices of the compute weights: cast(masters)
    lookahead   learning_rate                                     the same, with its look-ahead
    moved       learning_rate, count (0 or 1); votes              the same, as one payload would move the masters

Kinds of tensors are `KINDS`. The votes of payload i are the tensors `i.places`, `i.counts` and, if values are sent, `i.values`.
What can fail was checked on rank 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from psyche_core.interfaces.optimizer_parts import OptimizerPart, PartValues
from psyche_optim_distro.division.table import PartTable, part_tables
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.payload.coefficients import Coefficients
from psyche_optim_distro.settings import DistroSettings

KINDS: Final = ("masters", "delta", "private", "public")
"""Tensors that rank 0 reads and replaces: the last two are those of `private_state` beside delta, and of `public_state`.

Delta is read only; its values to replace are those of `private_state`.
"""


@dataclass(slots=True)
class _Slices:
    """Stands for a model: the slices of its parameters. They are there only while compute weights are written."""

    parameters: dict[str, Tensor]


class DistroPart(OptimizerPart):
    """One part, see the module. settings: of the run. shapes: of the whole model. number: of the part, of `parts`.

    A part beyond those that the model can be cut into holds nothing, and gives nothing back. compiled: as for `DistroOptimizer`.
    """

    def __init__(
        self,
        settings: DistroSettings,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        number: int,
        parts: int,
        device: torch.device,
        compiled: bool = True,
    ) -> None:
        tables = part_tables(shapes, chunk=settings.compression_chunk, topk=settings.compression_topk, parts=parts)
        self._device = device
        self._table: PartTable | None = tables[number] if number < len(tables) else None
        if self._table is not None:
            slices = _Slices(self._empty_slices())
            self._slices = slices.parameters
            part = (self._table.layout, shapes)
            self._optimizer = DistroOptimizer(settings, slices, part=part, compiled=compiled)
            self._slices.clear()

    @torch.no_grad()
    def call(self, method: str, given: PartValues) -> PartValues:
        """Do what the module's table says. Raises ValueError for another method."""
        if self._table is None:
            return PartValues()

        numbers, tensors, optimizer = given.numbers, given.tensors, self._optimizer
        match method:
            case "slices":
                held = self._held(str(numbers["kind"]))
                wanted = [str(name) for key, name in numbers.items() if key != "kind"]
                return PartValues(tensors={name: held[name].reshape(-1) for name in wanted if name in held})
            case "replace":
                self._replace(str(numbers["kind"]), tensors)
            case "forget":
                optimizer.forget()
            case "bound":
                return PartValues({"bound": optimizer.delta_bound()})
            case "select":
                return self._select(numbers, tensors)
            case "apply":
                decoded = [self._votes(tensors, at) for at in range(int(numbers["count"]))]
                rate, accepted = float(numbers["learning_rate"]), bool(numbers["own_accepted"])
                optimizer.apply_decoded(int(numbers["step"]), decoded, learning_rate=rate, own_accepted=accepted)
            case "weights" | "lookahead" | "moved":
                return self._weights(method, numbers, tensors)
            case _:
                message = f"a part of DisTrO has no method {method!r:.40}; install the same psyche-optim-distro on all machines"
                raise ValueError(message)
        return PartValues()

    def _held(self, kind: str) -> Mapping[str, Any]:
        match kind:
            case "masters":
                return self._optimizer.masters
            case "delta":
                return self._optimizer.delta
            case "private":
                return self._optimizer.private_state()
            case _:
                return self._optimizer.public_state

    def _replace(self, kind: str, tensors: Mapping[str, Tensor]) -> None:
        if kind == "private":
            held = self._optimizer.private_state()
            state = {name: tensor.to(self._device).view(held[name].shape) for name, tensor in tensors.items()}
            self._optimizer.load_private_state(state)
            return

        held = self._held(kind)
        for name, tensor in tensors.items():
            held[name].view(-1).copy_(tensor)

    def _select(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> PartValues:
        selection = self._optimizer.select(
            int(numbers["step"]),
            {name: tensor.to(self._device) for name, tensor in tensors.items()},
            factor=float(numbers["factor"]),
            added=float(numbers["added"]),
            learning_rate=float(numbers["learning_rate"]),
        )
        arrays = {"chunks": selection.chunks, "indices": selection.indices, "values": selection.values}
        return PartValues(tensors={name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()})

    def _votes(self, tensors: Mapping[str, Tensor], at: int) -> Any:
        places, counts, values = (_array(tensors.get(f"{at}.{field}")) for field in ("places", "counts", "values"))
        return self._optimizer.take(Coefficients(places, counts, values))

    def _weights(self, method: str, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> PartValues:
        self._slices.update(self._empty_slices())
        match method:
            case "weights":
                self._optimizer.load_masters()
            case "lookahead":
                self._optimizer.load_lookahead(learning_rate=float(numbers["learning_rate"]))
            case _:
                decoded = self._votes(tensors, 0) if numbers["count"] else None
                self._optimizer.load_moved(decoded, learning_rate=float(numbers["learning_rate"]))
        written = {name: tensor.view(-1) for name, tensor in self._slices.items()}
        self._slices.clear()
        return PartValues(tensors=written)

    def _empty_slices(self) -> dict[str, Tensor]:
        assert self._table is not None, "only a part that holds something writes weights"
        return {piece.name: torch.zeros(piece.shape, device=self._device) for piece in self._table.slices}


def _array(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.cpu().numpy()
