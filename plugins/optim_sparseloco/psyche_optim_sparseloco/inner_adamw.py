"""AdamW on local weights: how far they have moved in this share, in units of the learning rate.

    drift <- drift + m / (sqrt(v) + eps)            moments with their bias corrections

A tensor's local weights are start - learning rate * rate factor * drift. All is float32 and private to this replica. Weight decay
is no part of the drift: it is applied to the masters, where it needs no bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from psyche_core.errors import NonFiniteError
from psyche_optim_sparseloco.layout import Layout, Parameter
from psyche_optim_sparseloco.settings import SparseLoCoSettings

MAX_SQUARED_NORM = 1e37
"""A gradient with a larger squared norm would overflow the float32 second moment, which would then stay infinite."""


class InnerAdamW:
    """Moments and drift. first, second, drift: float32 [layout.total]. steps: gradients in the moments."""

    def __init__(self, settings: SparseLoCoSettings, layout: Layout, device: torch.device) -> None:
        self._settings = settings
        self._layout = layout
        self.first: Tensor = torch.zeros(layout.total, device=device)
        self.second: Tensor = torch.zeros_like(self.first)
        self.drift: Tensor = torch.zeros_like(self.first)
        self.steps: int = 0

    def reset(self) -> None:
        """Forget everything."""
        for tensor in (self.first, self.second, self.drift):
            tensor.zero_()
        self.steps = 0

    def step(self, parameters: Mapping[str, Tensor]) -> None:
        """Take one step with the parameters' gradients. Raises NonFiniteError, and then changes nothing."""
        scale = self._scale([parameter.grad for parameter in parameters.values() if parameter.grad is not None])
        self.steps += 1
        for entry in self._layout.parameters:
            self._step(entry, parameters[entry.name].grad, scale)

    def _step(self, entry: Parameter, gradient: Tensor | None, scale: float) -> None:
        own = slice(entry.start, entry.stop)
        first, second = self.first[own], self.second[own]
        first_decay, second_decay = self._settings.betas
        first.mul_(first_decay)
        second.mul_(second_decay)
        if gradient is not None:
            scaled = gradient.detach().reshape(-1).to(torch.float32) * scale
            first.add_(scaled, alpha=1 - first_decay)
            second.addcmul_(scaled, scaled, value=1 - second_decay)
        root = (second / (1 - second_decay**self.steps)).sqrt_().add_(self._settings.eps)
        direction = (first / (1 - first_decay**self.steps)).div_(root)
        self.drift[own].add_(direction)

    def _scale(self, gradients: list[Tensor]) -> float:
        """Factor of the gradients: clipping. Raises NonFiniteError."""
        squares = math.fsum(float(gradient.double().square().sum()) for gradient in gradients)
        limit = self._settings.clip_grad_norm
        scale = min(1.0, limit / (math.sqrt(squares) + 1e-6)) if limit else 1.0
        if not squares * scale * scale < MAX_SQUARED_NORM:  # in this form NaN is rejected, too
            message = f"a gradient is not finite or too large: its squared norm is {squares}; nothing was sent"
            raise NonFiniteError(message)

        return scale
