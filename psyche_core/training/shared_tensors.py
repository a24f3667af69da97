"""The tensors that all replicas of a run share: the masters, and the optimizer's public state if it has any.

Digests, manifests and pieces are of these. The names of the public state get the prefix PREFIX here. An optimizer without public
state shares its masters under their own names, so nothing that is stored or sent depends on whether this version knows of such
state. A public state that is zero everywhere does not change the digest: it is the state of a checkpoint that has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from psyche_core.errors import ModelError
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.parameters import LazyParameters
from psyche_core.training.digest import full_digest

PREFIX: Final = "public_state/"
"""Before the names of the public state, in manifests and checkpoints. No parameter of the model may begin with it."""


def check_names(optimizer: Optimizer) -> None:
    """Raise ModelError if a parameter of the model has a name that is reserved for the public state of optimizers."""
    reserved = sorted(name for name in optimizer.masters if name.startswith(PREFIX))
    if reserved:
        message = (
            f"the model's parameter {reserved[0]} begins with {PREFIX}, which is reserved for the state of optimizers; rename it"
        )
        raise ModelError(message)


def shared_tensors(optimizer: Optimizer) -> Mapping[str, torch.Tensor]:
    """Return masters and public state by name, float32, not copies. Their names differ, see `check_names`."""
    masters, state = optimizer.masters, optimizer.public_state
    if not state:
        return masters
    if isinstance(masters, LazyParameters) and isinstance(state, LazyParameters):
        return _Joined(masters, Renamed(state, {PREFIX + name: name for name in sorted(state)}))
    return {**masters, **prefixed(state)}


def shared_digest(optimizer: Optimizer) -> bytes:
    """Return the full digest (32 bytes) of masters and public state; of the masters alone if the state is zero everywhere."""
    if not any(_has_set_bits(tensor) for tensor in optimizer.public_state.values()):
        return full_digest(optimizer.masters)

    return full_digest(shared_tensors(optimizer))


def prefixed(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of a public state by their names in manifests and checkpoints, ascending."""
    return {PREFIX + name: state[name] for name in sorted(state)}


def load_shared(optimizer: Optimizer, tensors: LazyParameters) -> None:
    """Replace masters and public state, and discard the optimizer's private state.

    tensors: all of `shared_tensors`, may be these themselves. The state comes first, so that an error of its first tensor leaves
    everything as it was. Raises ModelError, and what looking up a tensor raises.
    """
    names = {name: name for name in tensors if not name.startswith(PREFIX)}
    if optimizer.public_state:
        state = {name.removeprefix(PREFIX): name for name in tensors if name not in names}
        optimizer.load_public_state(Renamed(tensors, state))
    optimizer.load_parameters(Renamed(tensors, names))


class _Joined(LazyParameters):
    """The tensors of two mappings with different names."""

    def __init__(self, first: LazyParameters, second: LazyParameters) -> None:
        self._first = first
        self._second = second

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor, by name."""
        return {**self._first.shapes, **self._second.shapes}

    def __getitem__(self, name: str) -> torch.Tensor:
        found: torch.Tensor = (self._first if name in self._first else self._second)[name]
        return found


class Renamed(LazyParameters):
    """Some tensors of a mapping, under other names. names: name in `tensors` by name here."""

    def __init__(self, tensors: LazyParameters, names: Mapping[str, str]) -> None:
        self._tensors = tensors
        self._names = names

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor, by its name here."""
        return {name: self._tensors.shapes[original] for name, original in self._names.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self._tensors[self._names[name]]
        return found

    def copy_to(self, name: str, target: torch.Tensor) -> None:
        """Write a tensor's values into `target`."""
        self._tensors.copy_to(self._names[name], target)


def _has_set_bits(tensor: torch.Tensor) -> bool:
    """Whether any bit is 1: a negative zero equals zero, but has one."""
    return bool(tensor.detach().contiguous().view(torch.int32).any())
