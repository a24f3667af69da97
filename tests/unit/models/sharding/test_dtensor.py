"""The engine of torch itself, with two and four real ranks."""

from __future__ import annotations

import pytest

from psyche_core.models.sharding.dtensor import DTensorEngine
from psyche_core.testing.sharding import ShardingConformance
from psyche_core.testing.tiny_models import DEEPSEEK_V2, DEEPSEEK_V3, GPT2, LLAMA, QWEN2, QWEN3, TIED_LLAMA

MODELS = {
    "llama": LLAMA,
    "llama with biases and a divided output": {**LLAMA, "attention_bias": True, "mlp_bias": True, "vocab_size": 64},
    "tied llama": TIED_LLAMA,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "deepseek v3": DEEPSEEK_V3,
}
PARTED_DIFFERENTLY = {"llama": LLAMA, "qwen3": QWEN3, "deepseek v3": DEEPSEEK_V3}
FOUR_HEADS = {name: {**config, "num_key_value_heads": 4} for name, config in PARTED_DIFFERENTLY.items()}
ONE_OF_FOUR_HEADS = {"llama": FOUR_HEADS["llama"]}
UNPLANNED = {"gpt2": GPT2, "deepseek v2": DEEPSEEK_V2}


class TestTwoRanks(ShardingConformance):
    sharding = "dtensor"
    create = staticmethod(DTensorEngine)
    models = MODELS
    refused = UNPLANNED


@pytest.mark.slow
class TestFourRanks(ShardingConformance):
    """Both kinds of parallelism together."""

    sharding = "dtensor"
    create = staticmethod(DTensorEngine)
    ranks = 4
    degrees = ((2, 2),)
    models = ONE_OF_FOUR_HEADS


@pytest.mark.soak
class TestFourRanksOfEachModel(ShardingConformance):
    """The same with each kind of model, and more parts than two."""

    sharding = "dtensor"
    create = staticmethod(DTensorEngine)
    ranks = 4
    degrees = ((2, 2), (1, 4))
    models = FOUR_HEADS


@pytest.mark.soak
class TestFourRanksOverData(ShardingConformance):
    sharding = "dtensor"
    create = staticmethod(DTensorEngine)
    ranks = 4
    degrees = ((4, 1),)
    models = FOUR_HEADS


class TestAnyModelOverData(ShardingConformance):
    """Data parallelism alone needs no plan."""

    sharding = "dtensor"
    create = staticmethod(DTensorEngine)
    degrees = ((2, 1),)
    models = UNPLANNED
