"""Parameters that are created on lookup, so that the whole model is never in memory.

`Optimizer.load_parameters` and `load_public_state` take any mapping of tensors by name. Each lookup in a `LazyParameters` creates
the tensor again, for instance from disk. An optimizer that calls `replace_parameters` needs no memory for even one of them; an
optimizer that does not works too. No torch import here: tensors are opaque.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from psyche_core.errors import ModelError


class LazyParameters(Mapping[str, Any]):
    """Float32 tensors by parameter name. Look them up one after the other; each lookup may raise ModelError or OSError."""

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor, by name, without creating any."""

    def copy_to(self, name: str, target: Any) -> None:
        """Write the values of tensor `name` into `target`, a tensor of the same shape."""
        target.copy_(self[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __len__(self) -> int:
        return len(self.shapes)


def shapes_of(parameters: Mapping[str, Any]) -> Mapping[str, tuple[int, ...]]:
    """The shapes of parameters by name, lazy or not."""
    if isinstance(parameters, LazyParameters):
        return parameters.shapes

    return {name: tuple(tensor.shape) for name, tensor in parameters.items()}


def copy_parameter(parameters: Mapping[str, Any], name: str, target: Any) -> None:
    """Write the values of a parameter, lazy or not, into `target`, a tensor of the same shape."""
    if isinstance(parameters, LazyParameters):
        parameters.copy_to(name, target)
    else:
        target.copy_(parameters[name])


def replace_parameters(masters: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Write parameters, lazy or not, into an optimizer's masters.

    Raises ModelError for other names or shapes than those of the masters, and then changes nothing.
    """
    shapes = shapes_of(parameters)
    if shapes.keys() != masters.keys():
        different = ", ".join(sorted(shapes.keys() ^ masters.keys())[:3])
        message = f"expected exactly our {len(masters)} parameters; missing or unknown: {different}"
        raise ModelError(message)
    for name, master in masters.items():
        if shapes[name] != tuple(master.shape):
            message = f"{name} must have shape {tuple(master.shape)}, got {shapes[name]}"
            raise ModelError(message)

    for name, master in masters.items():
        copy_parameter(parameters, name, master)


def check_public_state(state: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Check that a public state, lazy or not, has the names and shapes of ours. expected: our own. Raises ModelError."""
    shapes = shapes_of(state)
    if shapes.keys() != expected.keys():
        different = ", ".join(sorted(shapes.keys() ^ expected.keys())[:3])
        message = f"an optimizer's public state must have exactly the tensors of ours; missing or unknown: {different}"
        raise ModelError(message)

    for name, tensor in expected.items():
        if shapes[name] != tuple(tensor.shape):
            message = f"{name} of an optimizer's public state must have shape {tuple(tensor.shape)}, got {shapes[name]}"
            raise ModelError(message)


def check_private_state(state: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Check that an optimizer can restore a saved private state.

    expected: its current private state. Raises ModelError for other names or shapes and for values that are not finite.
    """
    if state.keys() != expected.keys():
        message = (
            f"an optimizer's saved state must have our parameter names; different: {sorted(state.keys() ^ expected.keys())[:3]}"
        )
        raise ModelError(message)

    for name, tensor in expected.items():
        if tuple(state[name].shape) != tuple(tensor.shape):
            message = f"{name} of an optimizer's state must have shape {tuple(tensor.shape)}, got {tuple(state[name].shape)}"
            raise ModelError(message)
        if not bool(state[name].isfinite().all()):
            message = f"{name} of an optimizer's state holds values that are not finite"
            raise ModelError(message)
