"""What `compress` looks at before it changes anything: the gradients' norm, their factor from clipping, delta's bound."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from psyche_core.errors import NonFiniteError
from psyche_optim_distro.replay import gradient_scale
from psyche_optim_distro.settings import DistroSettings

LARGEST_NORM = 1e15
"""Delta's norm is computed if its upper bound exceeds this.

Sums of squares of numbers up to this size do not overflow float32.
"""


def flat_gradients(parameters: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the gradients of parameters as flat tensors by name; parameters without a gradient are absent."""
    gradients = {name: parameter.grad for name, parameter in parameters.items()}
    return {name: gradient.reshape(-1) for name, gradient in gradients.items() if gradient is not None}


def clip_factor(gradients: Iterable[Tensor], settings: DistroSettings) -> tuple[float, float]:
    """Return the factor of the gradients for clipping, and their norm times it. Raises NonFiniteError."""
    norm = float(torch.nn.utils.get_total_norm(gradients))
    if not math.isfinite(norm):
        message = f"the global L2 norm of the gradient is {norm}; nothing was sent"
        raise NonFiniteError(message)

    factor = gradient_scale(norm, learning_rate=1.0, clip=settings.clip_grad_norm)
    return factor, factor * norm


def check_bound(bound: float, step: int) -> None:
    """Raise NonFiniteError if delta could get infinite. bound: of its L2 norm after the gradient of `step`."""
    if not bound <= LARGEST_NORM**2:
        message = f"delta would not be finite after adding the gradient of step {step}; nothing was sent"
        raise NonFiniteError(message)
