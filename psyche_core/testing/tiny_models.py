"""Configurations of tiny transformers models, for tests: random weights, a vocabulary of 61, under 100 000 parameters.

Write one as `config.json` into a folder of its own and build it with `HfAuto`. They cover the differences between architectures:
norms, biases, position embeddings, grouped heads, latent attention, experts, tied embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

VOCABULARY: Final = 61

_COMMON: Final[Mapping[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_LATENT_ATTENTION_AND_EXPERTS: Final[Mapping[str, Any]] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
}

LLAMA: Final[Mapping[str, Any]] = {**_COMMON, "model_type": "llama"}
TIED_LLAMA: Final[Mapping[str, Any]] = {**LLAMA, "tie_word_embeddings": True}
QWEN2: Final[Mapping[str, Any]] = {**_COMMON, "model_type": "qwen2"}
QWEN3: Final[Mapping[str, Any]] = {**_COMMON, "model_type": "qwen3", "head_dim": 8}
GPT2: Final[Mapping[str, Any]] = {
    "model_type": "gpt2",
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
DEEPSEEK_V3: Final[Mapping[str, Any]] = {
    **_COMMON,
    **_LATENT_ATTENTION_AND_EXPERTS,
    "model_type": "deepseek_v3",
    "num_mtp_layers": 0,
}
DEEPSEEK_V2: Final[Mapping[str, Any]] = {
    **_COMMON,
    **_LATENT_ATTENTION_AND_EXPERTS,
    "model_type": "deepseek_v2",
    "topk_method": "group_limited_greedy",
}

TINY_MODELS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "llama": LLAMA,
        "tied llama": TIED_LLAMA,
        "qwen2": QWEN2,
        "qwen3": QWEN3,
        "gpt2": GPT2,
        "deepseek v3": DEEPSEEK_V3,
        "deepseek v2": DEEPSEEK_V2,
    }
)
"""All configurations by name, for test ids."""
