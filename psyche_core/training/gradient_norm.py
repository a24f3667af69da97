"""The norm of a model's gradient, a figure for people; training does not depend on it."""

from __future__ import annotations

from psyche_core.interfaces.model import Model


def gradient_norm(model: Model) -> float:
    """Return the L2 norm over all gradients that `Model.gradients` stored; 0 if there are none. It only reads them."""
    import torch

    gradients = [parameter.grad for parameter in model.parameters.values() if parameter.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0
