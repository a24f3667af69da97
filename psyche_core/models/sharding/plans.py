"""How the layers of known architectures are divided over a tensor group, by the names of their modules in transformers.

Attention is divided by heads; feed-forward layers and routed experts are divided by their inner dimension. Every rank holds a
complete copy of everything else. Architectures that are not listed here and sizes that cannot be divided raise ModelError: a
wrongly divided model would train without an error message, and only its gradients would show the mistake.

Two cases need more than a split. A parameter that each rank uses only for its own heads (Qwen3's norms of queries and keys) gets
a part of its gradient on each rank. A value that every rank computes but uses only for its own heads (the rotary slice of
DeepSeek's `kv_a_proj_with_mqa`) also gets a part of its gradient on each rank, while the rest of the same tensor gets its
complete gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from psyche_core.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of an architecture. Names are ends of module names; in `partial` they are ends of parameter names.

    column: linear layers split by outputs. row: linear layers split by inputs; the ranks sum their outputs. divided: config
    values that must be multiples of the tensor group's size. partial: parameters that each rank uses only for its own heads.
    experts: modules with fused weights of all routed experts, `gate_up_proj` (E, 2I, H) and `down_proj` (E, H, I). shared_slice:
    layers whose outputs from index `kv_lora_rank` (a config value) on are used by each rank only for its own heads.
    """

    column: tuple[str, ...]
    row: tuple[str, ...]
    divided: tuple[str, ...]
    partial: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()
    shared_slice: tuple[str, ...] = ()


_DENSE: Final = Plan(
    column=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"),
    row=("self_attn.o_proj", "mlp.down_proj"),
    divided=("num_attention_heads", "num_key_value_heads", "intermediate_size"),
)

PLANS: Final[Mapping[str, Plan]] = MappingProxyType(
    {
        "llama": _DENSE,
        "qwen2": _DENSE,
        "qwen3": Plan(
            column=_DENSE.column,
            row=_DENSE.row,
            divided=_DENSE.divided,
            partial=("self_attn.q_norm.weight", "self_attn.k_norm.weight"),
        ),
        "deepseek_v3": Plan(
            column=(
                "self_attn.q_proj",
                "self_attn.q_b_proj",
                "self_attn.kv_b_proj",
                "mlp.gate_proj",
                "mlp.up_proj",
                "mlp.shared_experts.gate_proj",
                "mlp.shared_experts.up_proj",
            ),
            row=("self_attn.o_proj", "mlp.down_proj", "mlp.shared_experts.down_proj"),
            divided=("num_attention_heads", "intermediate_size", "moe_intermediate_size"),
            experts=("mlp.experts",),
            shared_slice=("self_attn.kv_a_proj_with_mqa",),
        ),
    }
)
"""Plans by model_type."""


def plan_of(model_type: str, *, config: Any, tensor_parallelism: int) -> Plan:
    """Return the plan of an architecture. config: that of transformers, for its sizes. Raises ModelError."""
    plan = PLANS.get(model_type)
    if plan is None:
        message = (
            f"model_type {model_type!r} cannot be divided by --tensor-parallelism (there are {', '.join(PLANS)}); "
            "--data-parallelism works with every model"
        )
        raise ModelError(message)

    for name in plan.divided:
        value = getattr(config, name)
        if value % tensor_parallelism:
            message = f"{name} of the model is {value}, which --tensor-parallelism {tensor_parallelism} does not divide"
            raise ModelError(message)
    return plan


def ends_with(name: str, ends: tuple[str, ...]) -> bool:
    """Whether a dotted name is equal to one of `ends` or ends with one of them, at a dot."""
    return any(name == end or name.endswith(f".{end}") for end in ends)
