"""The second stage `rmsprop`: divides the decoded mean update by the running root mean square of its elements.

Every replica decodes the same update u, so each computes the same mean square v. It is public state, see
`psyche_core.interfaces.optimizer`. For each element, with t counting the updates:

    v <- 0.95 v + 0.05 u²        d = u / (sqrt(v / (1 - 0.95^t)) + 1e-8)

Each operation is one float32 operation, rounded once as IEEE 754 says, over separate elements. There is no fused multiply-add and
no reduction, so all devices and numbers of threads give the same bits. 1 - 0.95^t is computed as the mean square of an update
that is always 1, since platforms round powers differently. A mean square below 2^-64 becomes zero, so that it never gets so small
that a processor that flushes subnormal numbers would differ.

torch's float32 square root is not always the correctly rounded one: on CPUs it calls a vector library that may be wrong by one
unit in the last place. So the root is computed in float64 and rounded. That gives the correctly rounded root even if the float64
root is wrong by up to four units in its last place. Proof, for x in [1, 4), a multiple of 2^-23: a midpoint m of two float32
numbers in [1, 2) is an odd multiple of 2^-24, so m² is an odd multiple of 2^-48 and not x; hence |sqrt(x) - m| = |x - m²| /
(sqrt(x) + m) > 2^-48 / 4, which is four units of float64 in [1, 2). So no midpoint lies between the root and its float64 value.
Other x differ by powers of four.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from psyche_core.errors import ModelError
from psyche_core.interfaces.parameters import check_public_state, copy_parameter
from psyche_optim_distro.chunks.layout import Group, Layout
from psyche_optim_distro.chunks.tiles import Workspace

_KEPT = float(np.float32(0.95))
_ADDED = float(np.float32(0.05))
_EPSILON = float(np.float32(1e-8))
_SMALLEST = 2.0**-64

CORRECTION = "correction"
"""Name of 1 - 0.95^t in the state, a tensor of one element. Mean squares have `mean_square.` and the parameter's name."""


class RMSprop:
    """The running mean squares of one replica, zero at first.

    layout: parameter table. device: of the masters. workspace: scratch memory; buffer 1 is used.
    """

    def __init__(self, layout: Layout, device: torch.device, *, workspace: Workspace) -> None:
        self._workspace = workspace
        self._mean_squares = torch.zeros(layout.total, dtype=torch.float32, device=device)
        self._correction = torch.zeros(1, dtype=torch.float32, device=device)
        squares = {f"mean_square.{entry.name}": entry for entry in layout.parameters}
        views = {name: self._mean_squares[entry.start : entry.stop].view(entry.shape) for name, entry in squares.items()}
        self._state = MappingProxyType(dict(sorted({**views, CORRECTION: self._correction}.items())))

    @property
    def state(self) -> Mapping[str, Tensor]:
        """All tensors by name, ascending; not copies."""
        return self._state

    def load(self, state: Mapping[str, Any]) -> None:
        """Replace the state. Raises ModelError, and then changes nothing, for other names or shapes and for values below 0."""
        check_public_state(state, self._state)
        for name in self._state:
            if not bool((state[name] >= 0).all()):
                message = f"{name} of the optimizer's public state holds values below 0 or NaN, which no mean square is"
                raise ModelError(message)

        for name, tensor in self._state.items():
            copy_parameter(state, name, tensor)

    def begin(self) -> None:
        """Count one more update. Call this before the `divide` of its parts."""
        self._correction.mul_(_KEPT).add_(_ADDED)

    def direction(self, update: Tensor, tile: Group) -> Tensor:
        """Return `divide` of one tile's update."""
        return self.divide(update, start=tile.start)

    def divide(self, update: Tensor, *, start: int) -> Tensor:
        """Add a part of the update to the mean squares, divide it in place, and return it.

        update: float32 [n], the elements from `start` on of a flat buffer.
        """
        squares = self._mean_squares[start : start + update.numel()]
        scratch = torch.mul(update, update, out=self._workspace.lend(1, update.shape))
        squares.mul_(_KEPT).add_(scratch.mul_(_ADDED))
        torch.threshold_(squares, _SMALLEST, 0.0)
        torch.div(squares, self._correction, out=scratch)
        return update.div_(scratch.copy_(scratch.to(torch.float64).sqrt_()).add_(_EPSILON))
