"""DeepSpeed's AutoTP as a sharding engine, with two real ranks."""

from __future__ import annotations

import importlib.util

import pytest

from psyche_core.testing.sharding import ShardingConformance
from psyche_core.testing.tiny_models import DEEPSEEK_V3, GPT2, LLAMA, QWEN2, QWEN3, TIED_LLAMA
from psyche_optim_distro.sharding.deepspeed import DeepSpeedEngine

pytestmark = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs psyche-optim-distro[deepspeed]")

MODELS = {"llama": LLAMA, "tied llama": TIED_LLAMA, "qwen2": QWEN2, "qwen3": QWEN3}
WRONG = {"deepseek v3": DEEPSEEK_V3, "gpt2": GPT2}


class TestDeepSpeed(ShardingConformance):
    sharding = "deepspeed"
    create = staticmethod(DeepSpeedEngine)
    degrees = ((1, 2),)
    models = MODELS
    refused = WRONG


@pytest.mark.soak
class TestDeepSpeedOverData(ShardingConformance):
    """Two groups that share weights, with rows of their own."""

    sharding = "deepspeed"
    create = staticmethod(DeepSpeedEngine)
    ranks = 4
    degrees = ((2, 2),)
    models = {"llama": LLAMA}  # noqa: RUF012 - as the conformance class is written
