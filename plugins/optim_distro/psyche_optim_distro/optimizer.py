"""DisTrO behind the Optimizer contract: masters, delta, what was sent and not settled yet, and the order of a step.

Per trained step s (modeling facts 1.6, with protocol section 4):

    apply(s - 2)        settle own result of s - 2; masters <- masters (1 - lr wd) - lr sign(decode(mean of accepted))
    load_lookahead      compute weights <- cast(masters - lr sign(delta)); nothing has to be undone
    compress(s)         delta <- decay (delta - own results not subtracted yet) + lr g; payload = top-k of its DCT

Deviation from the reference: it decays the weights while a node trains, so a node that trains nothing splits from the rest. Here
decay is part of `apply`, once per applied step, before its subtraction (as AdamW does): the same weights and gradients while
training, one decay less in between.
What was sent is subtracted: as it travelled, or with its exact values where only signs did. Refuses gradients that are not
finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from psyche_core.errors import ModelError, NonFiniteError
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.parameters import check_private_state, copy_parameter, shapes_of
from psyche_optim_distro import codec
from psyche_optim_distro.aggregation import Aggregator
from psyche_optim_distro.codec import Values
from psyche_optim_distro.layout import build_layout
from psyche_optim_distro.selection import Selection, select
from psyche_optim_distro.settings import DistroSettings
from psyche_optim_distro.transform import dct_basis, decode_sparse, encode

_CLIP_EPSILON = 1e-6


@dataclass(slots=True)
class _Sent:
    """An own result that is not settled. slots, values: flat positions int64 and exact float32 coefficients.

    subtracted: None while delta still contains it, else the product of the decays since it was taken off.
    """

    slots: Tensor
    values: Tensor
    subtracted: float | None = None


class DistroOptimizer(Optimizer):
    """One replica's DisTrO. model: its parameters' current values become the masters. All parameters on one device."""

    def __init__(self, settings: DistroSettings, model: Model) -> None:
        self._settings = settings
        self._parameters: Mapping[str, Tensor] = model.parameters
        self._device = next(iter(self._parameters.values())).device
        shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters.items()}
        self._layout = build_layout(shapes, chunk=settings.compression_chunk, topk=settings.compression_topk)
        self._values = settings.values
        self._max_payload_bytes = codec.max_payload_bytes(self._layout, values=self._values)
        self._aggregator = Aggregator(self._layout, self._device)
        self._basis = {
            size: dct_basis(size).to(self._device, torch.float32)
            for size in sorted({size for group in self._layout.groups for size in (group.height, group.width)})
        }
        self._flat_masters = self._zeros()
        self._flat_delta = self._zeros()
        self._scratch = self._zeros()
        self._masters = MappingProxyType(self._views(self._flat_masters))
        self._delta = self._views(self._flat_delta)
        self._sent: dict[int, _Sent] = {}
        self.load_parameters({name: parameter.detach() for name, parameter in self._parameters.items()})

    @property
    def exact(self) -> bool:
        """Always: the aggregate is decoded in integers, whether signs or values travel."""
        return True

    @property
    def max_payload_bytes(self) -> int:
        """See the codec: a bound from the parameter table alone."""
        return self._max_payload_bytes

    @property
    def masters(self) -> Mapping[str, Any]:
        """float32 master weights: views of one flat buffer, ascending by name."""
        return self._masters

    @property
    def delta(self) -> Mapping[str, Tensor]:
        """Momentum and residual in one, float32, by parameter name. For reading (figures, tests)."""
        return MappingProxyType(self._delta)

    @torch.no_grad()
    def load_lookahead(self, *, learning_rate: float) -> None:
        """Write cast(masters - lr sign(delta)): delta still holds what is on its way and not applied yet."""
        torch.sign(self._flat_delta, out=self._scratch)
        torch.sub(self._flat_masters, self._scratch, alpha=learning_rate, out=self._scratch)
        self._write(self._scratch)

    @torch.no_grad()
    def load_masters(self) -> None:
        """Write the masters, cast, into the compute weights."""
        self._write(self._flat_masters)

    @torch.no_grad()
    def compress(self, step: int, *, learning_rate: float) -> bytes:
        """Take the gradients into delta and return the payload; see the module for the order.

        Raises NonFiniteError, changing nothing, and ValueError for a step that waits to be settled.
        """
        if step in self._sent:
            message = f"step {step} was compressed already and is not settled"
            raise ValueError(message)

        decay = self._settings.compression_decay
        scale = learning_rate * self._gather_gradient()
        delta = self._flat_delta.clone()
        waiting = [sent for sent in self._sent.values() if sent.subtracted is None]
        for sent in waiting:
            self._add_decoded(delta, sent, -1.0)

        delta.mul_(decay).add_(self._scratch, alpha=scale)
        selection = select(self._layout, self._encode(delta))
        slots = torch.from_numpy(self._layout.slots(selection.chunks, selection.indices)).to(self._device)
        if not bool(np.isfinite(selection.values).all()):
            message = f"delta is not finite after adding the gradient of step {step}; nothing was sent"
            raise NonFiniteError(message)

        travels = codec.as_sent(selection.values, self._values)
        payload = codec.encode(self._layout, Selection(selection.chunks, selection.indices, travels), values=self._values)
        taken = selection.values if self._values is Values.SIGNS else travels
        values = torch.from_numpy(taken).to(self._device)
        self._flat_delta.copy_(delta)
        for sent in self._sent.values():
            sent.subtracted = (1.0 if sent.subtracted is None else sent.subtracted) * decay
        self._sent[step] = _Sent(slots, values)
        return payload

    def check(self, payload: bytes) -> None:
        """Decode against our table and forget. Raises PayloadRejected, never anything else."""
        codec.decode(self._layout, payload, values=self._values)

    @torch.no_grad()
    def apply(self, step: int, payloads: Sequence[bytes], *, learning_rate: float, own_accepted: bool) -> None:
        """Settle our own result, then masters <- masters (1 - lr wd) - lr sign(decoded mean), each operation rounded alike.

        Raises PayloadRejected, changing nothing, for a payload that `check` refuses.
        """
        one_bit = self._settings.quantize_1bit
        # Sorted by content: float64 sums of values then have one order on every replica.
        selections = [codec.decode(self._layout, payload, values=self._values) for payload in sorted(payloads)]
        direction = self._aggregator.direction(selections, one_bit=one_bit) if selections else None
        self._settle(step, accepted=own_accepted)
        if direction is None:
            return

        weight_decay = self._settings.weight_decay or 0.0
        if weight_decay:
            self._flat_masters.mul_(1 - learning_rate * weight_decay)
        self._flat_masters.sub_(direction, alpha=learning_rate)

    @torch.no_grad()
    def load_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Replace the masters; delta and unsettled results are dropped. Raises ModelError for other names or shapes."""
        shapes = shapes_of(parameters)
        if set(shapes) != set(self._masters):
            different = sorted(set(shapes) ^ set(self._masters))[:3]
            message = f"expected exactly our {len(self._masters)} parameters; missing or unknown: {', '.join(different)}"
            raise ModelError(message)

        for name, master in self._masters.items():
            if shapes[name] != tuple(master.shape):
                message = f"{name} must have shape {tuple(master.shape)}, got {shapes[name]}"
                raise ModelError(message)

        for name, master in self._masters.items():
            copy_parameter(parameters, name, master)
        self._flat_delta.zero_()
        self._sent.clear()

    def private_state(self) -> Mapping[str, Any]:
        """delta, by parameter name."""
        return {f"delta.{name}": tensor for name, tensor in self._delta.items()}

    @torch.no_grad()
    def load_private_state(self, state: Mapping[str, Any]) -> None:
        """Take delta back. Raises ModelError for other names or shapes, or values that are not finite."""
        check_private_state(state, self.private_state())
        for name, tensor in self._delta.items():
            tensor.copy_(state[f"delta.{name}"])
        self._sent.clear()

    def _settle(self, step: int, *, accepted: bool) -> None:
        """Bring delta in line with what became of our result of `step`; older ones can no longer be accepted."""
        for number in sorted(number for number in self._sent if number <= step):
            sent = self._sent.pop(number)
            taken = accepted and number == step
            if taken and sent.subtracted is None:
                self._add_decoded(self._flat_delta, sent, -1.0)
            elif not taken and sent.subtracted is not None:
                self._add_decoded(self._flat_delta, sent, sent.subtracted)

    def _gather_gradient(self) -> float:
        """Copy the gradients into the scratch buffer; return the factor that clips them. Raises NonFiniteError."""
        for name, view in self._views(self._scratch).items():
            gradient = self._parameters[name].grad
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient)

        norm = float(torch.linalg.vector_norm(self._scratch))
        if not math.isfinite(norm):
            message = f"the global L2 norm of the gradient is {norm}; nothing was sent"
            raise NonFiniteError(message)

        limit = self._settings.clip_grad_norm or math.inf
        return limit / (norm + _CLIP_EPSILON) if norm > limit else 1.0

    def _encode(self, delta: Tensor) -> Tensor:
        """DCT coefficients of a flat buffer, in a new one."""
        coefficients = torch.empty_like(delta)
        for group in self._layout.groups:
            shape = (group.row_blocks, group.height, group.columns)
            part = slice(group.start, group.stop)
            signal = delta[part].view(shape)
            coefficients[part].view(shape).copy_(encode(signal, self._basis[group.height], self._basis[group.width]))

        return coefficients

    def _add_decoded(self, delta: Tensor, sent: _Sent, factor: float) -> None:
        """Add factor times the inverse DCT of what was sent to `delta`."""
        for group in self._layout.groups:
            inside = (sent.slots >= group.start) & (sent.slots < group.stop)
            signal = decode_sparse(
                sent.slots[inside] - group.start,
                sent.values[inside],
                (group.row_blocks, group.height, group.columns),
                self._basis[group.height],
                self._basis[group.width],
            )
            delta[group.start : group.stop].view(signal.shape).add_(signal, alpha=factor)

    def _write(self, flat: Tensor) -> None:
        """Cast a flat buffer into the model's compute weights."""
        for name, view in self._views(flat).items():
            self._parameters[name].data.copy_(view)

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat buffer by parameter name, ascending."""
        return {entry.name: flat[entry.start : entry.stop].view(entry.shape) for entry in self._layout.parameters}

    def _zeros(self) -> Tensor:
        return torch.zeros(self._layout.total, dtype=torch.float32, device=self._device)
