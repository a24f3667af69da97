"""How the layers of known architectures are divided over a tensor group, by the names that transformers gives their parts.

Attention is divided by heads, feed-forward by inner values, each routed expert likewise; what is not named is held whole by every
rank. Architectures that are not listed here and sizes that cannot be divided are refused: a wrongly divided model trains, and
nothing but its gradients shows the mistake.

Two cases need more than a cut. A parameter that each rank uses for its own heads only (Qwen3's norms of queries and keys) gets a
part of its gradient on each rank. A value that every rank makes but uses for its own heads only (the rotary slice of DeepSeek's
`kv_a_proj_with_mqa`) gets a part of its gradient on each, while the rest of the same tensor gets it whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from psyche_core.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An architecture's. Names are ends of module names, but for `partial`: of parameter names.

    column: linear maps cut by outputs; row: by inputs, after which ranks add up. partial: parameters used by a rank's own heads
    only. experts: modules with fused weights of all routed experts, `gate_up_proj` (E, 2I, H) and `down_proj` (E, H, I).
    shared_slice: maps whose outputs from config value `kv_lora_rank` on are used by a rank's own heads only. divided: config
    values that must be multiples of the tensor group's size.
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
"""By model_type."""


def plan_of(model_type: str, *, config: Any, tensor_parallelism: int) -> Plan:
    """The plan of an architecture. config: transformers' own, for its sizes. Raises ModelError."""
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
    """Whether a dotted name is, or ends with, one of the others."""
    return any(name == end or name.endswith(f".{end}") for end in ends)
