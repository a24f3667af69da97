"""Divides a member's own gradients by their running root mean square, before they are added to delta (setting `gradient_beta2`).

For each element, with the gradient g after clipping and t counting the gradients of this member:

    v <- beta2 v + (1 - beta2) g²        what is added to delta: learning rate * g / (sqrt(v / (1 - beta2^t)) + 1e-8)

So the coefficients that are sent are selected as by Adam, and not by the size of the gradient: elements whose gradients are small
during the whole training also get a part of the few coefficients that a chunk may send. v is private to a member, as delta is; no
replica depends on its bits. 1 - beta2^t is computed as the mean square of a gradient that is always 1.

`Preconditioner` keeps the mean squares and divides in torch. The numba backend divides in the kernel that adds to delta.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from psyche_core.errors import ModelError
from psyche_optim_distro.chunks.layout import Layout
from psyche_optim_distro.chunks.tiles import CPU_TILE_ELEMENTS

EPSILON = 1e-8
_MANY = 2**31
"""Placeholder for an unknown number of gradients."""

CORRECTION = "correction"
"""Name of 1 - beta2^t in the state, a tensor of one element. Mean squares have `mean_square.` and the parameter's name."""


class Preconditioner:
    """The running mean squares of one member's gradients, zero at first. They take as much memory as delta.

    layout: parameter table. device: of the parameters. beta2: fraction of the mean squares that stays, per gradient.
    """

    def __init__(self, layout: Layout, device: torch.device, *, beta2: float) -> None:
        self._beta2 = beta2
        self._flat = torch.zeros(layout.total, dtype=torch.float32, device=device)
        self._tile = CPU_TILE_ELEMENTS if device.type == "cpu" else max(1, layout.total)
        self._roots = torch.empty(min(self._tile, layout.total), dtype=torch.float32, device=device)
        self._correction = torch.zeros(1, dtype=torch.float32, device=device)
        self._count = 0
        self._places = {entry.name: slice(entry.start, entry.stop) for entry in layout.parameters}
        views = {
            f"mean_square.{entry.name}": self._flat[entry.start : entry.stop].view(entry.shape) for entry in layout.parameters
        }
        self._state = MappingProxyType({**views, CORRECTION: self._correction})

    @property
    def state(self) -> Mapping[str, Tensor]:
        """All tensors by name; not copies."""
        return self._state

    @property
    def largest_norm(self) -> float:
        """Upper bound of the L2 norm of divided gradients: no element exceeds 1 / sqrt(1 - beta2)."""
        return math.sqrt(self._flat.numel() / (1 - self._beta2))

    def clear(self) -> None:
        """Forget all gradients."""
        self._count = 0
        self._flat.zero_()
        self._correction.zero_()

    def load(self, state: Mapping[str, Any]) -> None:
        """Replace the state by one with the same names and shapes. Raises ModelError for values below 0; nothing changes then."""
        for name in self._state:
            if not bool((state[name] >= 0).all()):
                message = f"{name} of an optimizer's state holds values below 0, which no mean square is"
                raise ModelError(message)

        for name, tensor in self._state.items():
            tensor.copy_(state[name])
        self._count = _MANY

    @property
    def beta2(self) -> float:
        """Fraction of the mean squares that stays, per gradient."""
        return self._beta2

    @property
    def mean_squares(self) -> Tensor:
        """The mean squares of all parameters: float32 [elements], row by row at each parameter's place; not a copy."""
        return self._flat

    @property
    def count(self) -> int:
        """Number of gradients since the mean squares were zero. After `load` it is unknown, and a large number is given."""
        return self._count

    def count_gradient(self) -> float:
        """Count the gradients of one step, which the caller adds to the mean squares; return 1 - beta2^t."""
        self._count += 1
        return float(self._correction.mul_(self._beta2).add_(1 - self._beta2))

    def take(self, gradients: Mapping[str, Tensor], *, factor: float) -> dict[str, Tensor]:
        """Add the gradients of one step, times `factor`, to the mean squares, and return the result of `divided` for them.

        gradients: by name, flat; a missing one is zero.
        """
        self.count_gradient()
        found = {}
        for name, place in self._places.items():
            gradient = gradients.get(name)
            if gradient is None:
                self._flat[place].mul_(self._beta2)
                continue

            result = gradient.to(torch.float32, copy=True)
            parts = zip(torch.split(result, self._tile), torch.split(self._flat[place], self._tile), strict=True)
            for scaled, squares in parts:  # a few operations over a tile that stays in the cache
                scaled.mul_(factor)
                squares.mul_(self._beta2).addcmul_(scaled, scaled, value=1 - self._beta2)
                roots = torch.div(squares, self._correction, out=self._roots[: squares.numel()])
                scaled.div_(roots.sqrt_().add_(EPSILON))
            found[name] = result
        return found

    def divided(self, gradients: Mapping[str, Tensor], *, factor: float) -> dict[str, Tensor]:
        """Return gradients times `factor`, divided by the root mean squares after adding them: new float32 tensors.

        gradients: by name; they may be on another device. Nothing changes.
        """
        correction = self._correction[0] * self._beta2 + (1 - self._beta2)
        found = {}
        for name, gradient in gradients.items():
            scaled = gradient.float() * factor
            squares = self._flat[self._places[name]].to(gradient.device).view(gradient.shape) * self._beta2
            squares.addcmul_(scaled, scaled, value=1 - self._beta2).div_(correction.to(gradient.device))
            found[name] = scaled.div_(squares.sqrt_().add_(EPSILON))
        return found
