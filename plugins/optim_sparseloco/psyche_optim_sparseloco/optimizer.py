"""SparseLoCo (Sarfi et al., 2025): several AdamW steps on local weights, of which the largest moves are sent, two bits each.

    load_lookahead   local weights <- masters - outer rate * own results that are not applied yet
    inner step       local weights <- local weights - lr f AdamW direction                          drift <- drift + direction
    compress(s)      error <- decay * error + drift;  sent <- Q(top-k of error);  error <- error - sent
    apply(s)         masters <- masters (1 - lr H wd) - lr f outer rate * (mean of what was sent for this weight)

with the factors f and wd of the tensor's rate group and H inner steps. The mean is over the results that have a value for the
weight, so that its size does not depend on how many members there are. Error, drift and what is sent are in units of the learning
rate, so a payload can move a weight no further than H honest AdamW steps could, whatever it says. `apply` adds integers and
rounds their means to integers; then each float32 operation is rounded once, none is fused or reduced. So it gives the same bits
on every device and in every order. All else is private.

A result that was not accepted is added back to the error, as if it had stayed there. The last inner step of a share is in
`compress`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from psyche_core.errors import ModelError
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.parameters import check_private_state, replace_parameters
from psyche_core.interfaces.rate_groups import RateGroups
from psyche_core.types import MAX_CLIENTS
from psyche_optim_sparseloco import codec
from psyche_optim_sparseloco.inner_adamw import InnerAdamW
from psyche_optim_sparseloco.layout import Parameter, build_layout
from psyche_optim_sparseloco.mean import means
from psyche_optim_sparseloco.quantizer import SMALLEST_SENT, UNIT, quantize
from psyche_optim_sparseloco.settings import SparseLoCoSettings
from psyche_optim_sparseloco.top_k import select

_NOT_NEGATIVE = ("second.", "steps")


@dataclass(slots=True, eq=False)
class _Sent:
    """A result that is not settled. positions: int64 [n], ascending. values: float32 [n], in units of the learning rate.

    kept: what of it would be in the error if it had not been sent.
    """

    positions: Tensor
    values: Tensor
    kept: float = 1.0


class SparseLoCo(Optimizer):
    """SparseLoCo; see the module. Raises ConfigError for `rates` that do not fit the model's parameters."""

    def __init__(self, settings: SparseLoCoSettings, model: Model) -> None:
        self._settings = settings
        self._compute: Mapping[str, Tensor] = model.parameters
        shapes = {name: tuple(tensor.shape) for name, tensor in self._compute.items()}
        self._layout = build_layout(shapes, settings)
        self._rates = (settings.rates or RateGroups()).tensor_rates(shapes)
        self._device = next((tensor.device for tensor in self._compute.values()), torch.device("cpu"))
        self._flat = torch.zeros(self._layout.total, device=self._device)
        self._error = torch.zeros(self._layout.total, device=self._device)
        self._masters, self._errors = self._views(self._flat), self._views(self._error)
        for name, master in self._masters.items():
            master.copy_(self._compute[name].detach())
        self._inner = InnerAdamW(settings, self._layout, self._device)
        self._unit = settings.limit / UNIT
        self._sent: dict[int, _Sent] = {}
        self._lookahead_rate = 0.0
        self._max_payload_bytes = codec.max_payload_bytes(self._layout)

    @property
    def exact(self) -> bool:
        """True; the module docstring gives the reason."""
        return True

    @property
    def max_payload_bytes(self) -> int:
        """Upper bound in bytes, see `codec.max_payload_bytes`."""
        return self._max_payload_bytes

    @property
    def masters(self) -> Mapping[str, Tensor]:
        """float32 master weights by parameter name, ascending: views of one flat buffer."""
        return self._masters

    @property
    def momentum(self) -> Mapping[str, Tensor]:
        """The error feedback: moves that are not sent yet, in units of the learning rate."""
        return self._errors

    @property
    def inner_steps(self) -> int:
        """`inner_steps` of the settings."""
        return self._settings.inner_steps

    @torch.no_grad()
    def load_lookahead(self, *, learning_rate: float) -> None:
        """Begin a share: write the masters, moved by our own results that are not applied yet, into the compute weights."""
        self._lookahead_rate = learning_rate
        self._inner.drift.zero_()
        self._write_local(learning_rate=0.0)

    @torch.no_grad()
    def load_masters(self) -> None:
        """Write cast(masters) into the compute weights."""
        for name, master in self._masters.items():
            self._compute[name].copy_(master)

    @torch.no_grad()
    def inner_step(self, *, learning_rate: float) -> None:
        """Take an AdamW step and write the local weights. Raises NonFiniteError, and then changes nothing."""
        self._inner.step(self._compute)
        self._write_local(learning_rate=learning_rate)

    @torch.no_grad()
    def compress(self, step: int, *, learning_rate: float) -> bytes:  # noqa: ARG002 - payloads are in units of it
        """Take the share's last inner step, add the drift to the error and send the error's largest values.

        Raises NonFiniteError, and then changes nothing; ValueError for a step that is compressed but not settled.
        """
        if step in self._sent:
            message = f"step {step} was compressed already and is not settled"
            raise ValueError(message)

        self._inner.step(self._compute)
        self._error.mul_(self._settings.error_decay).add_(self._inner.drift)
        self._inner.drift.zero_()
        for earlier in self._sent.values():
            earlier.kept *= self._settings.error_decay
        positions, counts = select(self._error, self._layout, smallest=SMALLEST_SENT * self._unit)
        places = torch.from_numpy(positions).to(self._device)
        senders = counts[counts > 0]
        quantized = quantize(self._error.gather(0, places).cpu().numpy().astype(np.float64) / self._unit, senders)
        values = torch.from_numpy(quantized.amounts(senders)).to(self._device).to(torch.float32) * self._unit
        self._error.scatter_add_(0, places, -values)
        self._sent[step] = _Sent(places, values)
        return codec.encode(self._layout, positions, counts, quantized)

    def check(self, payload: bytes) -> None:
        """Decode against our own table. Raises PayloadRejected, never anything else."""
        codec.decode(self._layout, payload)

    @torch.no_grad()
    def apply(self, step: int, payloads: Sequence[bytes], *, learning_rate: float, own_accepted: bool) -> None:
        """Settle our own result, then move the masters as the module says, with the same bits on every replica.

        Raises PayloadRejected, and then changes nothing, for a payload that `check` rejects.
        """
        if len(payloads) > MAX_CLIENTS:
            message = f"at most {MAX_CLIENTS} payloads can be added exactly, got {len(payloads)}"
            raise ValueError(message)

        updates = [codec.decode(self._layout, payload) for payload in payloads]
        self._settle(step, accepted=own_accepted)
        if not updates:
            return

        decay = self._settings.inner_steps * (self._settings.weight_decay or 0.0)
        for entry in self._layout.parameters:
            kept = np.float32(max(0.0, self._rates[entry.name].kept(learning_rate, decay)))
            self._flat[entry.start : entry.stop].mul_(float(kept))
        for entry, places, values in means(updates, self._layout, self._device):
            size = np.float32(self._rates[entry.name].step(learning_rate) * self._settings.outer_rate * self._unit)
            self._flat[entry.start : entry.stop].scatter_add_(0, places, values * float(-size))

    @torch.no_grad()
    def load_parameters(self, parameters: Mapping[str, Tensor]) -> None:
        """Replace the masters and forget everything private. Raises ModelError for other names or shapes, and changes nothing."""
        replace_parameters(self._masters, parameters)
        self._error.zero_()
        self._inner.reset()
        self._sent.clear()

    def private_state(self) -> Mapping[str, Tensor]:
        """Error and both moments by parameter name, and the number of gradients in the moments."""
        parts = {"error": self._errors, "first": self._views(self._inner.first), "second": self._views(self._inner.second)}
        named = {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}
        return {**named, "steps": torch.tensor([float(self._inner.steps)])}

    @torch.no_grad()
    def load_private_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore error and moments. Raises ModelError for other names or shapes, and for values that they cannot have."""
        own = self.private_state()
        check_private_state(state, own)
        below = [name for name in own if name.startswith(_NOT_NEGATIVE) and bool((state[name] < 0).any())]
        if below:
            message = f"{below[0]} of an optimizer's state holds values below zero"
            raise ModelError(message)

        for name, tensor in own.items():
            tensor.copy_(state[name])
        self._inner.steps = round(float(state["steps"][0]))
        self._sent.clear()

    def _settle(self, step: int, *, accepted: bool) -> None:
        """Give back what was not accepted. Results of steps before this one can no longer be accepted."""
        for number in sorted(number for number in self._sent if number <= step):
            sent = self._sent.pop(number)
            if not (accepted and number == step):
                self._error.scatter_add_(0, sent.positions, sent.values * sent.kept)

    def _write_local(self, *, learning_rate: float) -> None:
        """Write the local weights into the compute weights. learning_rate: of the drift."""
        for entry in self._layout.parameters:
            own = slice(entry.start, entry.stop)
            factor = self._rates[entry.name].rate
            weights = self._compute[entry.name]
            in_place = weights.dtype == torch.float32 and weights.is_contiguous()  # others are rounded once, at the end
            local = weights.view(-1) if in_place else torch.empty_like(self._flat[own])
            torch.add(self._flat[own], self._inner.drift[own], alpha=-learning_rate * factor, out=local)
            for sent in self._sent.values():
                places, values = _within(sent.positions, sent.values, entry)
                local.scatter_add_(0, places, values * (-self._lookahead_rate * factor * self._settings.outer_rate))
            if not in_place:
                weights.copy_(local.view(entry.shape))

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat buffer by parameter name, ascending."""
        return {entry.name: flat[entry.start : entry.stop].view(entry.shape) for entry in self._layout.parameters}


def _within(positions: Tensor, values: Tensor, entry: Parameter) -> tuple[Tensor, Tensor]:
    """The part of a sparse update in one parameter: places in it, and values. positions: ascending, [n]."""
    ends = torch.searchsorted(positions, torch.tensor([entry.start, entry.stop], device=positions.device)).tolist()
    return positions[ends[0] : ends[1]] - entry.start, values[ends[0] : ends[1]]
