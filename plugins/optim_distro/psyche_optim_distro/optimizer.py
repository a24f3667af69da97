"""DisTrO as an `Optimizer`: holds masters, delta and unsettled own results, and defines the order of a step.

Per trained step s (from the reference implementation, with protocol section 4):

    apply(s - 2)        settle own result of s - 2; masters <- masters (1 - lr wd) - lr f sign(decode(mean of accepted))
    load_lookahead      compute weights <- cast(masters - lr f sign(delta)); the masters do not change
    compress(s)         delta <- decay (delta - own results not subtracted yet) + lr g; payload = top-k of its DCT

Only `compress` changes delta (and `private_state`): it also corrects delta for results that were settled since the last call. So
the look-ahead always uses the delta that the last `compress` left, which others can check (protocol section 7), even after rounds
without a share.

f is the tensor's factor of the rate, and wd its weight decay (settings `rates`; without them, 1 and the same for all). Delta does
not include f: a factor of a whole tensor changes neither delta's signs nor which coefficients of a chunk are the largest. With a
second stage (settings `second_stage`), `apply` does not use the sign of the decoded mean, but what `clip`, `orthogonal` or
`rmsprop` computes from it. With `gradient_beta2`, g is the gradient divided by its running root mean square, see
`preconditioner`.

Deviation from the reference implementation: it decays the weights while a node trains, so a node that does not train diverges
from the rest. Here weight decay is part of `apply`, once per applied step, before the subtraction, as in AdamW. Weights and
gradients are the same while training; there is one decay less in between.

A sent result is subtracted from delta: with the values as sent, or with its exact values if only signs were sent; in both cases
multiplied by `compression_subtract`. Delta is in blocked order (`blocked_buffer`), since almost all operations on it work on
blocks. Gradients that are not finite are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.parameters import check_private_state, replace_parameters, shapes_of
from psyche_core.interfaces.rate_groups import RateGroups
from psyche_core.interfaces.replay import AppliedStep, Replay
from psyche_optim_distro.backends.choice import compressor_for, updater_for
from psyche_optim_distro.backends.torch import TorchCompressor
from psyche_optim_distro.chunks.blocked_buffer import BlockedBuffer, JoinedMapping, PrefixedMapping
from psyche_optim_distro.chunks.layout import Layout, build_layout
from psyche_optim_distro.chunks.precision import Precision
from psyche_optim_distro.chunks.rates import Rates
from psyche_optim_distro.chunks.tiles import Workspace, tiles_of
from psyche_optim_distro.compress import add_sent, dct_bases
from psyche_optim_distro.compute_weights import ComputeWeights
from psyche_optim_distro.direction.clip import Clip
from psyche_optim_distro.direction.orthogonal import Orthogonal
from psyche_optim_distro.direction.rmsprop import RMSprop
from psyche_optim_distro.gradients import LARGEST_NORM, check_bound, clip_factor, flat_gradients
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.coefficients import Coefficients
from psyche_optim_distro.payload.top_k import CoefficientTables, Selection
from psyche_optim_distro.payload.vote_cache import VoteCache
from psyche_optim_distro.preconditioner import Preconditioner
from psyche_optim_distro.replay import DistroReplay
from psyche_optim_distro.settings import DistroSettings
from psyche_optim_distro.update import SecondStage
from psyche_optim_distro.value_format import ValueFormat

VOTE_CACHE_SHARE = 4
"""Checked payloads and what `apply` needs of them are kept in up to 1 / VOTE_CACHE_SHARE of the masters' memory.

That is a byte for each parameter. 256 payloads that send 8 of 4096 coefficients take 0.7 bytes, and what compiled code keeps
beside them less than 0.1."""


class HasParameters(Protocol):
    """What an optimizer needs of a model, or of a part of one."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """See `Model.parameters`."""


@dataclass(slots=True)
class _Sent:
    """An own result that is not settled yet.

    tables: the coefficients to subtract from delta. norm: their L2 norm. payload: what was sent, kept where we look ahead by it.
    subtracted: None while delta still contains them, else the product of the decays since they were subtracted.
    """

    tables: CoefficientTables
    norm: float
    payload: bytes
    subtracted: float | None = None


class DistroOptimizer(Optimizer):
    """DisTrO of one replica.

    settings: of the run. model: the current values of its parameters become the masters; all parameters are on one device. Raises
    ConfigError for `rates` that do not fit its parameters.
    precision: of the torch backend's transform in `compress`, which selects that backend; None: chosen for the device. compiled:
    whether the numba backend may be used (extra `fast`, CPU only). It takes less time and gives the same bits wherever replicas
    must agree. part: its table and the whole model's shapes by name, for an optimizer of one part of a model (`division`), whose
    `parameters` are then the slices of that table; its payloads are nobody's, only `select` is of use.
    """

    def __init__(
        self,
        settings: DistroSettings,
        model: HasParameters,
        *,
        precision: Precision | None = None,
        compiled: bool = True,
        part: tuple[Layout, Mapping[str, tuple[int, ...]]] | None = None,
    ) -> None:
        self._settings = settings
        self._parameters: Mapping[str, Tensor] = model.parameters
        self._device = next(iter(self._parameters.values())).device
        if part is None:
            shapes = shapes_of(self._parameters)
            self._layout = build_layout(shapes, chunk=settings.compression_chunk, topk=settings.compression_topk)
        else:
            self._layout, shapes = part
        self._values = settings.values
        self._max_payload_bytes = codec.max_payload_bytes(self._layout, values=self._values)
        self._vote_cache = VoteCache(limit=4 * self._layout.total // VOTE_CACHE_SHARE)
        self._basis = dct_bases(self._layout, self._device)
        rates: Rates = {} if settings.rates is None else settings.rates.tensor_rates(shapes)
        self._workspace = Workspace(self._device)
        self._weights = ComputeWeights(self._layout, self._parameters, rates, workspace=self._workspace)
        self._compressor = compressor_for(
            self._layout, self._values, self._device, workspace=self._workspace, precision=precision, compiled=compiled
        )
        self._preconditioner: Preconditioner | None = None
        if settings.gradient_beta2 is not None:
            self._preconditioner = Preconditioner(self._layout, self._device, beta2=settings.gradient_beta2)
        self._rmsprop: RMSprop | None = None
        if settings.second_stage == "rmsprop":
            self._rmsprop = RMSprop(self._layout, self._device, workspace=self._workspace)
        self._updater = updater_for(
            self._layout,
            self._values,
            self._device,
            workspace=self._workspace,
            compiled=compiled,
            rates=rates,
            second_stage=self._second_stage(shapes),
        )
        self._flat_masters = self._zeros()
        self._flat_delta = self._zeros()
        self._masters = MappingProxyType(self._views(self._flat_masters))
        self._delta = BlockedBuffer(self._flat_delta, self._layout)
        self._delta_bound = 0.0
        self._sent: dict[int, _Sent] = {}
        self._corrections: list[tuple[_Sent, float]] = []
        self._ahead = b""
        self.load_parameters({name: parameter.detach() for name, parameter in self._parameters.items()})

    @property
    def exact(self) -> bool:
        """Always True: `apply` decodes the aggregate in integers, for signs and for values."""
        return True

    @property
    def compiled(self) -> bool:
        """Whether the numba backend is used. It always compresses, and updates masters from signs, with `clip` or no stage."""
        return not isinstance(self._compressor, TorchCompressor)

    @property
    def max_payload_bytes(self) -> int:
        """Upper bound in bytes, see `codec.max_payload_bytes`."""
        return self._max_payload_bytes

    @property
    def replay(self) -> Replay:
        """The data that a verifier needs, see `replay`."""
        return DistroReplay(
            self._settings,
            self._layout,
            self._flat_delta,
            self._tables_of,
            self._load_weights,
            self._preconditioner,
            ahead=lambda: self._ahead,
            load_weights_ahead=self._load_weights_ahead,
        )

    @property
    def masters(self) -> Mapping[str, Any]:
        """float32 master weights by parameter name, ascending: views of one flat buffer."""
        return self._masters

    @property
    def public_state(self) -> Mapping[str, Any]:
        """Tensors of the second stage `rmsprop`, see `direction.rmsprop`; empty without it."""
        return {} if self._rmsprop is None else self._rmsprop.state

    @property
    def delta(self) -> Mapping[str, Tensor]:
        """Momentum and residual in one buffer, float32, by parameter name: the values with which the next `compress` begins.

        Each access returns a copy; for figures and tests.
        """
        return BlockedBuffer(self._corrected(), self._layout) if self._corrections else self._delta

    @property
    def momentum(self) -> Mapping[str, Tensor]:
        """Delta: momentum together with what was not sent yet, and what was sent but is not subtracted yet."""
        return self.delta

    @torch.no_grad()
    def load_lookahead(self, *, learning_rate: float) -> None:
        """Write cast(masters - lr f sign(delta)) into the compute weights. Delta contains results that are not applied yet.

        With the setting `lookahead = "payload"`: masters as our newest result alone would move them, if it is not settled.
        """
        if self._settings.lookahead == "delta":
            self._weights.write_ahead(self._flat_masters, self._flat_delta, learning_rate=learning_rate)
        else:
            self._ahead = self._sent[max(self._sent)].payload if self._sent else b""
            decoded = self._updater.decode(self._ahead) if self._ahead else None
            self.load_moved(decoded, learning_rate=learning_rate)

    @torch.no_grad()
    def load_moved(self, decoded: Any, *, learning_rate: float) -> None:
        """Write the compute weights as one decoded payload would move the masters; cast(masters) for None."""
        self._weights.write(self._moved(self._flat_masters, decoded, learning_rate=learning_rate))

    @torch.no_grad()
    def load_masters(self) -> None:
        """Write cast(masters) into the compute weights."""
        self._weights.write(self._flat_masters)

    @torch.no_grad()
    def compress(self, step: int, *, learning_rate: float) -> bytes:
        """Add the gradients to delta and return the payload. The module describes the order.

        Raises NonFiniteError, and then changes nothing; ValueError for a step that is compressed but not settled.
        """
        if step in self._sent:
            message = f"step {step} was compressed already and is not settled"
            raise ValueError(message)

        gradients = flat_gradients(self._parameters)
        factor, norm = clip_factor(gradients.values(), self._settings)
        added = learning_rate * (norm if self._preconditioner is None else self._preconditioner.largest_norm)
        check_bound(self._settings.compression_decay * self.delta_bound() + added, step)
        selection = self.select(step, gradients, factor=factor, added=added, learning_rate=learning_rate)
        payload = codec.encode(self._layout, selection, values=self._values)
        if self._settings.lookahead == "payload":
            self._sent[step].payload = payload
        return payload

    @torch.no_grad()
    def delta_bound(self) -> float:
        """Return an upper bound of the L2 norm of delta without the results that are not subtracted yet."""
        if self._delta_bound > LARGEST_NORM:  # the bound grows faster than the norm
            self._delta_bound = float(torch.linalg.vector_norm(self._flat_delta))
        return self._delta_bound + sum(sent.norm for sent in self._sent.values() if sent.subtracted is None)

    @torch.no_grad()
    def select(
        self, step: int, gradients: Mapping[str, Tensor], *, factor: float, added: float, learning_rate: float
    ) -> Selection:
        """Add gradients to delta, and return what is sent, with the values as they are sent. The module describes the order.

        gradients: flat, by name, all finite. factor: of them, from clipping. added: upper bound of the norm of what is added.
        """
        decay = self._settings.compression_decay
        self._delta_bound = decay * self.delta_bound() + added
        self._correct()
        tables = CoefficientTables(self._layout, self._device, self._compressor.precision)
        self._compressor.compress(
            self._flat_delta,
            gradients,
            [sent.tables for sent in self._sent.values() if sent.subtracted is None],
            tables,
            scale=learning_rate,
            decay=decay,
            factor=factor,
            preconditioner=self._preconditioner,
        )
        tables.drop_noise()
        selection = tables.selection()
        sent_values = codec.as_sent(selection.values, self._values)
        if self._values is not ValueFormat.SIGNS:
            tables.replace_values(sent_values)
        tables.scale(self._settings.compression_subtract)
        for sent in self._sent.values():
            sent.subtracted = (1.0 if sent.subtracted is None else sent.subtracted) * decay
        self._sent[step] = _Sent(tables, tables.norm(), b"")
        return Selection(selection.chunks, selection.indices, sent_values)

    def check(self, payload: bytes) -> None:
        """Decode against our table, and cache signs for `apply`. Raises PayloadRejected, never anything else."""
        decoded = self._updater.decode(payload)
        if self._settings.quantize_1bit:
            self._vote_cache.put(payload, decoded)

    @torch.no_grad()
    def apply(self, step: int, payloads: Sequence[bytes], *, learning_rate: float, own_accepted: bool) -> None:
        """Settle our own result, then masters <- masters (1 - lr wd) - lr f sign(decoded mean).

        Each operation is rounded equally on every replica. Raises PayloadRejected, and then changes nothing, for a payload that
        `check` rejects.
        """
        decoded = [self._vote_cache.pop(payload) or self._updater.decode(payload) for payload in payloads]
        self.apply_decoded(step, decoded, learning_rate=learning_rate, own_accepted=own_accepted)

    def take(self, coefficients: Coefficients) -> Any:
        """Return what `apply_decoded` takes, see `Updater.take`."""
        return self._updater.take(coefficients)

    @torch.no_grad()
    def apply_decoded(self, step: int, decoded: Sequence[Any], *, learning_rate: float, own_accepted: bool) -> None:
        """Do `apply` with payloads that this optimizer's updater has decoded."""
        self._settle(step, accepted=own_accepted)
        if decoded:
            decay = self._settings.weight_decay or 0.0
            self._updater.update(self._flat_masters, decoded, learning_rate=learning_rate, weight_decay=decay)

    @torch.no_grad()
    def load_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Replace the masters and discard delta and unsettled results. Raises ModelError for other names or shapes."""
        replace_parameters(self._masters, parameters)
        self.forget()

    def forget(self) -> None:
        """Discard all private state: delta, unsettled results and the mean squares of gradients."""
        self._flat_delta.zero_()
        self._delta_bound = 0.0
        self._sent.clear()
        self._corrections.clear()
        if self._preconditioner is not None:
            self._preconditioner.clear()

    @torch.no_grad()
    def load_public_state(self, state: Mapping[str, Any]) -> None:
        """Replace the second stage's tensors. Raises ModelError for other names or shapes."""
        if self._rmsprop is None:
            super().load_public_state(state)
        else:
            self._rmsprop.load(state)

    def private_state(self) -> Mapping[str, Any]:
        """Return delta by parameter name, with the prefix `delta.`, and the tensors of the preconditioner, if there is one.

        It brings delta up to date first, so that this replica and one that loads the state continue in the same way.
        """
        self._correct()
        delta = PrefixedMapping("delta.", self._delta)
        return delta if self._preconditioner is None else JoinedMapping(delta, self._preconditioner.state)

    @torch.no_grad()
    def load_private_state(self, state: Mapping[str, Any]) -> None:
        """Restore delta and the preconditioner. Raises ModelError for other names or shapes, or impossible values."""
        check_private_state(state, self.private_state())
        if self._preconditioner is not None:
            self._preconditioner.load(state)
        for name in self._delta:
            self._delta.replace(name, state[f"delta.{name}"])
        self._delta_bound = float(torch.linalg.vector_norm(self._flat_delta))
        self._sent.clear()
        self._corrections.clear()

    @torch.no_grad()
    def _load_weights(self, direction: Tensor, undone: Sequence[AppliedStep], learning_rate: float) -> None:
        """Write the compute weights of another replica. direction: of its look-ahead, int8 [layout.total], in blocked order."""
        self._weights.write_ahead(self._masters_before(undone), direction, learning_rate=learning_rate)

    @torch.no_grad()
    def _load_weights_ahead(self, payload: bytes, undone: Sequence[AppliedStep], learning_rate: float) -> None:
        """Write the compute weights of another replica that looked ahead by this payload, if it is not empty."""
        decoded = self._updater.decode(payload) if payload else None
        self._weights.write(self._moved(self._masters_before(undone), decoded, learning_rate=learning_rate))

    def _masters_before(self, undone: Sequence[AppliedStep]) -> Tensor:
        decay = self._settings.weight_decay or 0.0
        return self._weights.masters_before(self._flat_masters, undone, updater=self._updater, weight_decay=decay)

    def _moved(self, masters: Tensor, decoded: Any, *, learning_rate: float) -> Tensor:
        """Return masters as one decoded payload would move them, without weight decay; the same tensor for None."""
        if decoded is None:
            return masters

        moved = torch.zeros_like(masters)
        self._updater.update(moved, [decoded], learning_rate=learning_rate, weight_decay=0.0)
        return moved.add_(masters)

    def _tables_of(self, step: int) -> CoefficientTables | None:
        """Return the coefficients of an own result that delta still contains; None if there are none."""
        sent = self._sent.get(step)
        return sent.tables if sent is not None and sent.subtracted is None else None

    def _settle(self, step: int, *, accepted: bool) -> None:
        """Note how to correct delta, depending on whether our result of `step` was accepted. Older results cannot be any more.

        Delta itself stays as the last `compress` left it: a verifier knows that delta (protocol section 7), and so its
        look-ahead.
        """
        for number in sorted(number for number in self._sent if number <= step):
            sent = self._sent.pop(number)
            taken = accepted and number == step
            if taken and sent.subtracted is None:
                self._corrections.append((sent, -1.0))
            elif not taken and sent.subtracted is not None:
                self._corrections.append((sent, sent.subtracted))

    def _correct(self) -> None:
        """Bring delta up to date with what was settled since the last `compress`."""
        for sent, factor in self._corrections:
            self._add_everywhere(self._flat_delta, sent, factor)
            self._delta_bound += abs(factor) * sent.norm
        self._corrections.clear()

    def _corrected(self) -> Tensor:
        """Return a copy of delta that is up to date."""
        delta = self._flat_delta.clone()
        for sent, factor in self._corrections:
            self._add_everywhere(delta, sent, factor)
        return delta

    def _add_everywhere(self, delta: Tensor, sent: _Sent, factor: float) -> None:
        for tile in tiles_of(self._layout, self._device):
            add_sent(delta, tile, sent.tables, self._basis, factor=factor)

    def _second_stage(self, shapes: Mapping[str, tuple[int, ...]]) -> SecondStage | None:
        """Return the stage that the settings name. shapes: of the parameters by name."""
        match self._settings.second_stage:
            case "clip":
                return Clip(workspace=self._workspace)
            case "orthogonal":
                kinds = (self._settings.rates or RateGroups()).kinds(shapes)
                return Orthogonal(self._layout, [name for name, kind in kinds.items() if kind == "matrix"])
            case _:
                return self._rmsprop

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of a flat buffer by parameter name, ascending."""
        return {entry.name: flat[entry.start : entry.stop].view(entry.shape) for entry in self._layout.parameters}

    def _zeros(self) -> Tensor:
        return torch.zeros(self._layout.total, dtype=torch.float32, device=self._device)
