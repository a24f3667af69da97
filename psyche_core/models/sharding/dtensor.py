"""The sharding engine that uses torch itself: DTensor over the tensor group, FSDP2 over the data group.

- Linear layers are split by torch.distributed.tensor.parallel. Routed experts are split as plain tensors, with the same two
  collectives around them, because their gate and up projections are in one tensor that no DTensor placement describes.
- The output layer is split by vocabulary entries if its size is divisible and it is not tied. Input embeddings are complete on
  every rank of a tensor group. FSDP2 divides them, like everything else, over the data group.
- FSDP2 works on gloo only if gradients are summed and not averaged (`set_force_sum_reduction_for_comms`); we need the sum.
- Outside of a pass, every rank holds only its own piece: weights are written again before the next pass, so ranks must not keep
  complete weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers.modeling_layers import GradientCheckpointingLayer

from psyche_core.hookspecs import ShardingContext
from psyche_core.interfaces.sharding import Placement, RankGroup, ShardingEngine
from psyche_core.models.sharding.plans import Plan, ends_with, plan_of

_HEAD_COUNTS = ("num_heads", "num_key_value_heads")
"""Attributes from which older attention modules of transformers take their shapes."""


class DTensorEngine(ShardingEngine):
    """The engine `dtensor`, see the module."""

    def __init__(self, context: ShardingContext) -> None:
        super().__init__(context.group)
        self._module = context.module
        shapes = {name: tuple(parameter.shape) for name, parameter in self._module.named_parameters()}
        cuts: dict[str, Placement] = {}
        self._partial: tuple[str, ...] = ()
        if context.group.tensor_parallelism > 1:
            config = self._module.config.get_text_config()
            plan = plan_of(context.model_type, config=config, tensor_parallelism=context.group.tensor_parallelism)
            cuts = _cut(self._module, plan, context.group, shapes)
            self._partial = tuple(name for name in shapes if ends_with(name, plan.partial))
        data_dim = None
        if context.group.data_parallelism > 1:
            data_dim = 0
            _divide_over_data(self._module, context.group)
        self._module.to(context.device)
        self._parameters: dict[str, torch.nn.Parameter] = dict(sorted(self._module.named_parameters()))
        self._placements = {
            name: Placement(
                shape=shapes[name],
                tensor_dim=cuts[name].tensor_dim if name in cuts else None,
                halves=cuts[name].halves if name in cuts else 1,
                data_dim=data_dim,
            )
            for name in self._parameters
        }

    @property
    def module(self) -> torch.nn.Module:
        """The transformers module, changed in place."""
        module: torch.nn.Module = self._module
        return module

    @property
    def placements(self) -> Mapping[str, Placement]:
        """How each parameter is divided, by name, ascending."""
        return MappingProxyType(self._placements)

    def weight(self, name: str) -> torch.Tensor:
        """Return this rank's piece of a parameter."""
        return _local(self._parameters[name].data)

    def local_grad(self, name: str) -> torch.Tensor | None:
        """Return this rank's piece of a gradient, or None if there is none. FSDP2 has already summed it over the data group."""
        gradient = self._parameters[name].grad
        return None if gradient is None else _local(gradient)

    def drop_gradients(self) -> None:
        """Delete all gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def finish(self) -> None:
        """Sum the gradients of parameters that each rank used only for its own heads."""
        for name in self._partial:
            gradient = self.local_grad(name)
            assert gradient is not None, f"{name} is used in every pass"
            self._group.add_up(gradient, over="tensor")


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _cut(module: Any, plan: Plan, group: RankGroup, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Placement]:
    """Divide the module over the tensor group. Returns the placements of the divided parameters, by name."""
    mesh = group.mesh["tensor"]
    cuts: dict[str, Placement] = {}
    styles: dict[str, Any] = {}
    for name, part in list(module.named_modules()):
        if ends_with(name, plan.column):
            styles[name] = ColwiseParallel()
            cuts |= {f"{name}.{own}": Placement(shape=(), tensor_dim=0) for own, _ in part.named_parameters()}
        elif ends_with(name, plan.row):
            styles[name] = RowwiseParallel()
            cuts[f"{name}.weight"] = Placement(shape=(), tensor_dim=1)
        elif ends_with(name, plan.experts):
            cuts |= _cut_experts(name, part, group)
        elif ends_with(name, plan.shared_slice):
            part.register_forward_hook(_share_slice(module.config.kv_lora_rank, group))
        for count in _HEAD_COUNTS:
            if name.endswith("self_attn") and isinstance(getattr(part, count, None), int):
                setattr(part, count, getattr(part, count) // group.tensor_parallelism)

    head = module.get_output_embeddings()
    tied = head is not None and head.weight is module.get_input_embeddings().weight
    if head is not None and not tied and head.weight.shape[0] % group.tensor_parallelism == 0:
        (name,) = (name for name, part in module.named_modules() if part is head)
        styles[name] = ColwiseParallel(output_layouts=Replicate())
        cuts |= {f"{name}.{own}": Placement(shape=(), tensor_dim=0) for own, _ in head.named_parameters()}
    parallelize_module(module, mesh, styles, src_data_rank=None)  # None: every rank splits its own copy, nothing is sent
    assert cuts.keys() <= shapes.keys(), "a tied weight is cut by one name only"
    return cuts


def _cut_experts(name: str, experts: Any, group: RankGroup) -> dict[str, Placement]:
    """Divide the inner dimension of each expert. The ranks sum the outputs. Returns the placements, by name."""
    cuts = {}
    for own, dim, halves in (("gate_up_proj", 1, 2), ("down_proj", 2, 1)):
        whole = getattr(experts, own)
        placement = Placement(shape=tuple(whole.shape), tensor_dim=dim, halves=halves)
        piece = torch.empty(placement.piece_shape(group.place(group.rank)), dtype=whole.dtype, device=whole.device)
        setattr(experts, own, torch.nn.Parameter(piece))
        cuts[f"{name}.{own}"] = placement

    def share_inputs(_: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden, index, weights = given
        return _share(hidden, group), index, _share(weights, group)

    experts.register_forward_pre_hook(share_inputs)
    experts.register_forward_hook(lambda _module, _given, out: _add_up(out, group))
    return cuts


def _share_slice(start: int, group: RankGroup) -> Callable[..., torch.Tensor]:
    def hook(_module: Any, _given: Any, out: torch.Tensor) -> torch.Tensor:
        shared = _share(out[..., start:], group)
        return torch.cat((out[..., :start], shared), dim=-1)

    return hook


def _share(values: torch.Tensor, group: RankGroup) -> torch.Tensor:
    return _Share.apply(values, group)  # type: ignore[no-any-return, no-untyped-call]  # torch leaves it untyped


def _add_up(values: torch.Tensor, group: RankGroup) -> torch.Tensor:
    return _AddUp.apply(values, group)  # type: ignore[no-any-return, no-untyped-call]  # torch leaves it untyped


class _Share(torch.autograd.Function):
    """Identity in the forward pass; sums the gradients over the tensor group in the backward pass.

    For values that are equal on all ranks, of which each rank uses them for its own part.
    """

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: RankGroup) -> torch.Tensor:
        ctx.group = group
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradients[0].contiguous().clone()
        ctx.group.add_up(gradient, over="tensor")
        return gradient, None


class _AddUp(torch.autograd.Function):
    """Sums values over the tensor group in the forward pass; passes the gradient unchanged in the backward pass.

    For values of which each rank has one summand.
    """

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: RankGroup) -> torch.Tensor:  # noqa: ARG004 - torch's
        total = values.contiguous().clone()
        group.add_up(total, over="tensor")
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ARG004 - torch's
        return gradients[0], None


def _divide_over_data(module: Any, group: RankGroup) -> None:
    """Apply FSDP2 to each layer, and to the module for parameters outside layers."""
    mesh = group.mesh["data"]
    for part in list(module.modules()):
        if isinstance(part, GradientCheckpointingLayer):
            fully_shard(part, mesh=mesh, reshard_after_forward=True)
    fully_shard(module, mesh=mesh, reshard_after_forward=True)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
