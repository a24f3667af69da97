"""Every architecture that is promised keeps the contract of a model."""

from __future__ import annotations

from psyche_core.builtin.hf_models import create_auto, create_deepseek, create_llama
from psyche_core.testing.model import ModelConformance
from psyche_core.testing.tiny_models import DEEPSEEK_V2, DEEPSEEK_V3, GPT2, LLAMA, QWEN2, QWEN3, TIED_LLAMA


class TestLlama(ModelConformance):
    create = staticmethod(create_llama)
    config = LLAMA
    prepared_samples = True


class TestTiedLlama(ModelConformance):
    create = staticmethod(create_llama)
    config = TIED_LLAMA
    prepared_samples = True


class TestDeepseekV3(ModelConformance):
    create = staticmethod(create_deepseek)
    config = DEEPSEEK_V3
    prepared_samples = True


class TestDeepseekV2(ModelConformance):
    create = staticmethod(create_deepseek)
    config = DEEPSEEK_V2
    prepared_samples = True


class TestQwen2(ModelConformance):
    create = staticmethod(create_auto)
    config = QWEN2
    prepared_samples = True


class TestQwen3(ModelConformance):
    create = staticmethod(create_auto)
    config = QWEN3
    prepared_samples = True


class TestGpt2(ModelConformance):
    create = staticmethod(create_auto)
    config = GPT2
    prepared_samples = True
