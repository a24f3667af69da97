"""DeepSpeed's AutoTP as a sharding engine, with two real ranks."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from psyche_core.builtin.hf_models import divide
from psyche_core.config.run_config import Choice
from psyche_core.hookspecs import ModelContext, Parallelism
from psyche_core.models.sharding.controller import RankController
from psyche_core.testing.model import ModelConformance
from psyche_core.testing.sharding import ShardingConformance
from psyche_core.testing.tiny_models import DEEPSEEK_V3, GPT2, LLAMA, QWEN2, QWEN3, TIED_LLAMA
from psyche_core.training.build import build_optimizer
from psyche_core.training.trainer import Trainer
from psyche_optim_distro.division.divided import DividedDistro
from psyche_optim_distro.hooks import psyche_register_optimizers
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


def test_a_divided_optimizer_gives_the_payloads_and_digests_of_a_whole_one(tmp_path: Path) -> None:
    """With this engine's gradients, which are the same in both cases."""
    torch.set_num_threads(1)
    (tmp_path / "config.json").write_text(json.dumps(dict(LLAMA)))
    parallelism = Parallelism(tensor=2, sharding="deepspeed")
    context = ModelContext(
        source=tmp_path,
        max_seq_len=16,
        seed=bytes(32),
        device="cpu",
        parallelism=parallelism,
        create_engine=DeepSpeedEngine,
    )
    choice = Choice(name="Distro", settings={"compression_topk": 4, "quantize_1bit": True, "clip_grad_norm": 1.0})
    controller = RankController(parallelism, device_name="cpu")
    found = []
    for divided in (False, True):
        model = divide(context, controller=controller)
        optimizer = build_optimizer(lambda _kind, _name: psyche_register_optimizers()[0], choice, model, divided=divided)
        assert isinstance(optimizer, DividedDistro) is divided
        trainer = Trainer(model=model, optimizer=optimizer, learning_rate=lambda _: 1e-3, micro_batch_size=2)
        payloads: list[bytes] = []
        for step in range(1, 6):
            if step > 2:
                trainer.apply(step - 2, [payloads[step - 3]], own_accepted=True)
            samples = ModelConformance().samples(model, count=2, sequence_length=16, seed=step)
            payloads.append(trainer.train(step, samples).payload)
        found.append((payloads, trainer.full_digest()))
    assert found[0] == found[1]
    assert controller.close() == {1: 0}
