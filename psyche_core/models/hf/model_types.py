"""Which model types of transformers each of our architectures takes; a module of its own, so that it can be read
without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

MODEL_TYPES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"HfLlama": ("llama",), "HfDeepseek": ("deepseek_v3", "deepseek_v2"), "HfAuto": ()}
)
"""`model_type` of config.json by architecture; none for any causal language model."""
