"""Tensors of a divided optimizer by name, put together from the parts at each look-up, so that rank 0 never holds all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from psyche_core.interfaces.optimizer_parts import OptimizerParts, PartValues
from psyche_core.interfaces.parameters import LazyParameters
from psyche_optim_distro.division.table import PartTable


class Store:
    """Reads and replaces tensors of all parts. tables: of the parts that hold something. device: of what is read.

    It keeps the tensor that was read last, because large ones are read in pieces. Safe for use from several threads.
    """

    def __init__(self, parts: OptimizerParts, tables: Sequence[PartTable], device: torch.device) -> None:
        self._parts = parts
        self._places = [{piece.name: (piece.first, piece.last) for piece in table.slices} for table in tables]
        self._device = device
        self._last: tuple[str, str, Tensor] | None = None
        self._lock = threading.RLock()

    def call(
        self,
        method: str,
        given: Callable[[int], PartValues] = lambda _: PartValues(),
        *,
        into: Sequence[Mapping[str, Tensor]] | None = None,
    ) -> list[PartValues]:
        """Call all parts with what `given` says for each number, and return the answers of those that hold something."""
        with self._lock:
            self._last = None
            numbers = range(self._parts.count)
            values = [given(number) if number < len(self._places) else PartValues() for number in numbers]
            padded = None if into is None else [*into, *({} for _ in numbers[len(into) :])]
            return self._parts.call(method, values, into=padded)[: len(self._places)]

    def slices(self, number: int, flat: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return views of a part's slices of whole flat tensors, by name of the parameter."""
        return {name: flat[name][first:last] for name, (first, last) in self._places[number].items() if name in flat}

    def read(self, kind: str, name: str, *, parameter: str | None, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor. parameter: whose places it has; None for one that is equal in all parts."""
        with self._lock:
            if self._last is not None and self._last[:2] == (kind, name):
                return self._last[2]
            whole = torch.zeros(shape, dtype=torch.float32, device=self._device)
            into = self._into(name, parameter, whole.view(-1))
            self.call(
                "slices", lambda number: PartValues({"kind": kind, "0": name} if into[number] else {"kind": kind}), into=into
            )
            self._last = (kind, name, whole)
            return whole

    def replace(self, kind: str, name: str, whole: Tensor, *, parameter: str | None) -> None:
        """Replace a tensor in all parts that have a slice of it. parameter: as for `read`."""
        flat = whole.reshape(-1)
        if parameter is None:
            self.call("replace", lambda _: PartValues({"kind": kind}, {name: flat}))
        else:
            into = self._into(name, parameter, flat)
            self.call("replace", lambda number: PartValues({"kind": kind}, into[number]))

    def _into(self, name: str, parameter: str | None, flat: Tensor) -> list[dict[str, Tensor]]:
        if parameter is None:
            return [{name: flat}, *({} for _ in self._places[1:])]
        found = [places.get(parameter) for places in self._places]
        return [{} if place is None else {name: flat[place[0] : place[1]]} for place in found]


class Gathered(LazyParameters):
    """The tensors of one kind (`part.KINDS`). names: parameter and shape by name, see `Store.read`."""

    def __init__(self, store: Store, kind: str, names: Mapping[str, tuple[str | None, tuple[int, ...]]]) -> None:
        self._store = store
        self._kind = kind
        self._names = names
        self._shapes = {name: shape for name, (_, shape) in names.items()}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor, by name; nothing is asked of the parts."""
        return self._shapes

    def __getitem__(self, name: str) -> Tensor:
        parameter, shape = self._names[name]
        return self._store.read(self._kind, name, parameter=parameter, shape=shape)

    def replace(self, name: str, whole: Tensor) -> None:
        """Replace one tensor in all parts."""
        self._store.replace(self._kind, name, whole, parameter=self._names[name][0])

    def parameter_of(self, name: str) -> str | None:
        """The parameter whose places a tensor has; None for one that is equal in all parts."""
        return self._names[name][0]
