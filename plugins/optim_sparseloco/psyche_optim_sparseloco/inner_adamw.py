"""AdamW on local weights: how far they have moved in this share, in units of the learning rate.

    drift <- drift + m / (sqrt(v) + eps)            moments with their bias corrections

A tensor's local weights are start - learning rate * rate factor * drift. All is float32 and private to this replica. Weight decay
is no part of the drift: it is applied to the masters, where it needs no bytes.

torch's fused AdamW does it in one pass over the memory, as a step with the learning rate -1 on the drift. Its function is called
and not its class, which imports torch's compiler (some seconds) and would hold moments of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from psyche_core.errors import NonFiniteError
from psyche_optim_sparseloco.layout import Layout
from psyche_optim_sparseloco.settings import SparseLoCoSettings

MAX_SQUARED_NORM = 1e37
"""A gradient with a larger squared norm would overflow the float32 second moment, which would then stay infinite."""

_FUSED = ("cpu", "cuda")

_ROW = 4096
"""Elements whose squares are added in float32."""


class InnerAdamW:
    """Moments and drift. first, second, drift: float32 [layout.total]. steps: gradients in the moments."""

    def __init__(self, settings: SparseLoCoSettings, layout: Layout, device: torch.device) -> None:
        self._settings = settings
        self._names = [entry.name for entry in layout.parameters]
        self._fused = device.type in _FUSED
        self.first: Tensor = torch.zeros(layout.total, device=device)
        self.second: Tensor = torch.zeros_like(self.first)
        self.drift: Tensor = torch.zeros_like(self.first)
        self.steps: int = 0
        places = [slice(entry.start, entry.stop) for entry in layout.parameters]
        self._first, self._second, self._drift = ([flat[own] for own in places] for flat in (self.first, self.second, self.drift))

    def reset(self) -> None:
        """Forget everything."""
        for tensor in (self.first, self.second, self.drift):
            tensor.zero_()
        self.steps = 0

    def step(self, parameters: Mapping[str, Tensor]) -> None:
        """Take one step with the parameters' gradients, which stay as they are. Those of a parameter without any are zeros.

        Raises NonFiniteError, and then changes nothing.
        """
        gradients = [parameters[name].grad for name in self._names]
        scale = self._scale([gradient for gradient in gradients if gradient is not None])
        first_decay, second_decay = self._settings.betas
        for number, gradient in enumerate(gradients):  # one by one: a copy of one gradient is needed at a time, if any
            drift = self._drift[number]
            adamw(
                [drift],
                [torch.zeros_like(drift) if gradient is None else _scaled(gradient, scale)],
                [self._first[number]],
                [self._second[number]],
                [],
                [torch.full((), float(self.steps), device=drift.device)],
                foreach=False,
                fused=self._fused,
                amsgrad=False,
                beta1=first_decay,
                beta2=second_decay,
                lr=-1.0,
                weight_decay=0.0,
                eps=self._settings.eps,
                maximize=False,
            )
        self.steps += 1

    def _scale(self, gradients: list[Tensor]) -> float:
        """Factor of the gradients: clipping. Raises NonFiniteError."""
        squares = math.fsum(_norm(gradient) ** 2 for gradient in gradients)
        limit = self._settings.clip_grad_norm
        scale = min(1.0, limit / (math.sqrt(squares) + 1e-6)) if limit else 1.0
        if not squares * scale * scale < MAX_SQUARED_NORM:  # in this form NaN is rejected, too
            message = f"a gradient is not finite or too large: its squared norm is {squares}; nothing was sent"
            raise NonFiniteError(message)

        return scale


def _scaled(gradient: Tensor, scale: float) -> Tensor:
    """A gradient times a factor, as float32 values one after another: the fused step reads them so, whatever their strides."""
    flat = gradient.detach().reshape(-1).to(torch.float32).contiguous()
    return flat if scale == 1.0 else flat * scale


def _norm(values: Tensor) -> float:
    """The L2 norm, from those of rows: float32 adds up the squares of a row well, but not those of a whole matrix.

    It is not finite for a square that float32 cannot hold; then float64 is used, which takes three times as long.
    """
    flat = values.detach().reshape(-1)
    whole = flat.numel() // _ROW * _ROW
    for dtype in (torch.float32, torch.float64):
        rows = torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1, dtype=dtype)
        rest = torch.linalg.vector_norm(flat[whole:], dtype=dtype)
        norm = math.hypot(float(torch.linalg.vector_norm(rows, dtype=torch.float64)), float(rest))
        if math.isfinite(norm):
            break
    return norm
