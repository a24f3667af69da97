"""The `Optimizer` on rank 0 whose state and work are divided among ranks.

Payloads, masters, state and their bytes are those of one `DistroOptimizer`: the same chunks by the same arithmetic. Rank 0 alone
clips gradients, since the model leaves them there as a whole, and encodes and decodes payloads. Each part adds its slices of the
gradients, selects its chunks' coefficients, and moves its slices of the masters by its part of the votes. Masters and state are
put together when somebody looks at them (`gathered`).

Not here: verification. Others' weights of an earlier step need whole masters, so `replay` is None, and a run whose shares are
checked has an undivided optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from psyche_core.errors import ModelError
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.optimizer_parts import OptimizerParts, PartValues
from psyche_core.interfaces.parameters import copy_parameter, shapes_of
from psyche_core.types import MAX_CLIENTS
from psyche_optim_distro.backends.choice import decoder_for
from psyche_optim_distro.chunks.layout import build_layout
from psyche_optim_distro.division.gathered import Gathered, Store
from psyche_optim_distro.division.table import PartTable
from psyche_optim_distro.division.votes import coefficients_of, joined
from psyche_optim_distro.gradients import check_bound, clip_factor, flat_gradients
from psyche_optim_distro.optimizer import VOTE_CACHE_SHARE, HasParameters
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.coefficients import Coefficients
from psyche_optim_distro.payload.top_k import Selection
from psyche_optim_distro.payload.vote_cache import VoteCache
from psyche_optim_distro.preconditioner import CORRECTION
from psyche_optim_distro.settings import DistroSettings


class DividedDistro(Optimizer):
    """One optimizer, see the module.

    settings: of the run. model: whole, on rank 0; the current values of its parameters become the masters. parts: `DistroPart`s
    of the same settings and shapes. tables: theirs, at least one. compiled: as for `DistroOptimizer`.
    """

    def __init__(
        self,
        settings: DistroSettings,
        model: HasParameters,
        parts: OptimizerParts,
        *,
        tables: Sequence[PartTable],
        compiled: bool = True,
    ) -> None:
        self._settings = settings
        self._parameters: Mapping[str, Tensor] = model.parameters
        device = next(iter(self._parameters.values())).device
        shapes = shapes_of(self._parameters)
        self._layout = build_layout(shapes, chunk=settings.compression_chunk, topk=settings.compression_topk)
        self._tables = tables
        self._store = Store(parts, tables, device)
        self._decode = decoder_for(self._layout, settings.values, device, compiled=compiled)
        self._vote_cache = VoteCache(limit=4 * self._layout.total // VOTE_CACHE_SHARE)
        self._sent: dict[int, bytes] = {}

        def gathered(kind: str, *prefixes: str, correction: bool = False) -> Gathered:
            names: dict[str, tuple[str | None, tuple[int, ...]]] = {}
            for prefix in prefixes:
                names |= {prefix + name: (name, shape) for name, shape in shapes.items()}
            names |= {CORRECTION: (None, (1,))} if correction else {}
            return Gathered(self._store, kind, dict(sorted(names.items())))

        divides = settings.gradient_beta2 is not None
        self._masters = gathered("masters", "")
        self._delta = gathered("delta", "")
        self._private = gathered("private", *(("delta.", "mean_square.") if divides else ("delta.",)), correction=divides)
        self._public: Gathered | None = None
        if settings.second_stage == "rmsprop":
            self._public = gathered("public", "mean_square.", correction=True)
        self.load_parameters({name: parameter.detach() for name, parameter in self._parameters.items()})

    @property
    def exact(self) -> bool:
        """Always True, see `DistroOptimizer.exact`."""
        return True

    @property
    def max_payload_bytes(self) -> int:
        """Upper bound in bytes, see `codec.max_payload_bytes`."""
        return codec.max_payload_bytes(self._layout, values=self._settings.values)

    @property
    def masters(self) -> Mapping[str, Any]:
        """float32 master weights by parameter name, ascending. Each look-up makes a copy of one."""
        return self._masters

    @property
    def public_state(self) -> Mapping[str, Any]:
        """Tensors of the second stage `rmsprop`; empty without it."""
        return {} if self._public is None else self._public

    @property
    def momentum(self) -> Mapping[str, Any]:
        """Delta, see `DistroOptimizer.delta`."""
        return self._delta

    def load_lookahead(self, *, learning_rate: float) -> None:
        """See `DistroOptimizer.load_lookahead`."""
        numbers = {"learning_rate": learning_rate}
        if self._settings.lookahead == "delta":
            self._write("lookahead", [PartValues(numbers) for _ in self._tables])
        elif self._sent:
            self._write("moved", self._with_votes(numbers, [self._decode(self._sent[max(self._sent)])]))
        else:
            self.load_masters()

    def load_masters(self) -> None:
        """Write cast(masters) into the compute weights."""
        self._write("weights", [PartValues() for _ in self._tables])

    @torch.no_grad()
    def compress(self, step: int, *, learning_rate: float) -> bytes:
        """See `DistroOptimizer.compress`; the same bytes."""
        if step in self._sent:
            message = f"step {step} was compressed already and is not settled"
            raise ValueError(message)

        gradients = flat_gradients(self._parameters)
        factor, norm = clip_factor(gradients.values(), self._settings)
        beta2 = self._settings.gradient_beta2
        added = learning_rate * (norm if beta2 is None else math.sqrt(self._layout.total / (1 - beta2)))
        bounds = [float(answer.numbers["bound"]) for answer in self._store.call("bound")]
        check_bound(self._settings.compression_decay * math.hypot(*bounds) + added, step)
        numbers = {"step": step, "learning_rate": learning_rate, "factor": factor, "added": added}
        answers = self._store.call("select", lambda number: PartValues(numbers, self._store.slices(number, gradients)))
        selection = joined(self._layout, self._tables, [_selection(answer.tensors) for answer in answers])
        payload = codec.encode(self._layout, selection, values=self._settings.values)
        self._sent[step] = payload if self._settings.lookahead == "payload" else b""
        return payload

    def check(self, payload: bytes) -> None:
        """Decode against our table, and cache signs for `apply`. Raises PayloadRejected, never anything else."""
        decoded = self._decode(payload)
        if self._settings.quantize_1bit:
            self._vote_cache.put(payload, decoded)

    def apply(self, step: int, payloads: Sequence[bytes], *, learning_rate: float, own_accepted: bool) -> None:
        """See `DistroOptimizer.apply`; the same bits. Raises ValueError, and then changes nothing, for too many payloads."""
        if len(payloads) > MAX_CLIENTS:
            message = f"at most {MAX_CLIENTS} payloads can be aggregated exactly, got {len(payloads)}"
            raise ValueError(message)
        decoded = [self._vote_cache.pop(payload) or self._decode(payload) for payload in payloads]
        numbers = {"step": step, "learning_rate": learning_rate, "own_accepted": own_accepted}
        given = self._with_votes(numbers, decoded)
        self._store.call("apply", given.__getitem__)
        self._sent = {number: sent for number, sent in self._sent.items() if number > step}

    def load_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Replace the masters and discard private state. Raises ModelError for other names or shapes."""
        if parameters is not self._masters:
            _expect(shapes_of(parameters), self._masters.shapes, what="the parameters")
            for name in self._masters:
                self._masters.replace(name, self._copy(parameters, name, self._masters))
        self._store.call("forget")
        self._sent.clear()

    def load_public_state(self, state: Mapping[str, Any]) -> None:
        """Replace the second stage's tensors. Raises ModelError for other names or shapes, and values below 0."""
        if self._public is None:
            super().load_public_state(state)
            return

        _expect(shapes_of(state), self._public.shapes, what="an optimizer's public state")
        _expect_squares(state, self._public, what="the optimizer's public state")
        for name in self._public:
            self._public.replace(name, self._copy(state, name, self._public))

    def private_state(self) -> Mapping[str, Any]:
        """See `DistroOptimizer.private_state`; each look-up asks the parts."""
        return self._private

    def load_private_state(self, state: Mapping[str, Any]) -> None:
        """Restore delta and the mean squares. Raises ModelError for other names or shapes, or impossible values."""
        _expect(shapes_of(state), self._private.shapes, what="an optimizer's saved state")
        for name in self._private:
            if not bool(state[name].isfinite().all()):
                message = f"{name} of an optimizer's state holds values that are not finite"
                raise ModelError(message)
        _expect_squares(state, self._private, what="an optimizer's state")

        def given(number: int) -> PartValues:
            tensors: dict[str, Tensor] = {}
            for name in self._private:
                parameter, flat = self._private.parameter_of(name), state[name].reshape(-1)
                if parameter is None:
                    tensors[name] = flat
                else:
                    for own in self._store.slices(number, {parameter: flat}).values():
                        tensors[name] = own
            return PartValues({"kind": "private"}, tensors)

        self._store.call("replace", given)
        self._sent.clear()

    @torch.no_grad()
    def _write(self, method: str, given: Sequence[PartValues]) -> None:
        """Have the parts write their slices of the model's weights."""
        weights = {name: parameter.data for name, parameter in self._parameters.items()}
        scattered = [name for name, tensor in weights.items() if not tensor.is_contiguous()]
        flat = {name: (tensor.contiguous() if name in scattered else tensor).view(-1) for name, tensor in weights.items()}
        into = [self._store.slices(number, flat) for number in range(len(self._tables))]
        self._store.call(method, given.__getitem__, into=into)
        for name in scattered:
            weights[name].copy_(flat[name].view(weights[name].shape))

    def _with_votes(self, numbers: Mapping[str, Any], decoded: Sequence[Coefficients]) -> list[PartValues]:
        """Return what each part is given: its part of each decoded payload."""
        every = []
        for table in self._tables:
            tensors: dict[str, Tensor] = {}
            for at, coefficients in enumerate(decoded):
                own = coefficients_of(table, self._layout, coefficients)
                tensors |= {f"{at}.places": torch.from_numpy(own.places), f"{at}.counts": torch.from_numpy(own.counts)}
                if own.values is not None:
                    tensors[f"{at}.values"] = torch.from_numpy(own.values)
            every.append(PartValues({**numbers, "count": len(decoded)}, tensors))
        return every

    def _copy(self, tensors: Mapping[str, Any], name: str, ours: Gathered) -> Tensor:
        """Return a tensor of a mapping, lazy or not, where the parts can be sent it."""
        device = next(iter(self._parameters.values())).device
        whole = torch.empty(ours.shapes[name], dtype=torch.float32, device=device)
        copy_parameter(tensors, name, whole)
        return whole


def _selection(tensors: Mapping[str, Tensor]) -> Selection:
    chunks, indices, values = (tensors[name].cpu().numpy() for name in ("chunks", "indices", "values"))
    return Selection(chunks, indices, values)


def _expect(came: Mapping[str, tuple[int, ...]], ours: Mapping[str, tuple[int, ...]], *, what: str) -> None:
    if came.keys() != ours.keys():
        different = ", ".join(sorted(came.keys() ^ ours.keys())[:3])
        message = f"{what} must have exactly our {len(ours)} names; missing or unknown: {different}"
        raise ModelError(message)

    for name, shape in ours.items():
        if came[name] != shape:
            message = f"{name} of {what} must have shape {shape}, got {came[name]}"
            raise ModelError(message)


def _expect_squares(state: Mapping[str, Any], ours: Gathered, *, what: str) -> None:
    for name in ours:
        if (name == CORRECTION or name.startswith("mean_square.")) and not bool((state[name] >= 0).all()):
            message = f"{name} of {what} must hold no NaN and no values below 0, since these are mean squares"
            raise ModelError(message)
