"""The model types of transformers that each of our architectures accepts. A separate module, so that it can be imported without
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

MODEL_TYPES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"HfLlama": ("llama",), "HfDeepseek": ("deepseek_v3", "deepseek_v2"), "HfAuto": ()}
)
"""Allowed values of `model_type` in config.json by architecture; () for any causal language model."""
