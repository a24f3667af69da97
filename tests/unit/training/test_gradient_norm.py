"""The norm of a gradient is that over all parameters together, and computing it changes nothing."""

from __future__ import annotations

import pytest
import torch

from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.testing.toy_model import ToyModel, toy_samples
from psyche_core.training.gradient_norm import gradient_norm
from psyche_core.training.trainer import Trainer


def test_it_is_the_norm_over_everything() -> None:
    model = ToyModel()
    assert gradient_norm(model) == 0.0
    model.gradients(toy_samples(3), micro_batch_size=1)
    gradients = [parameter.grad.clone() for parameter in model.parameters.values() if parameter.grad is not None]
    together = torch.cat([gradient.double().reshape(-1) for gradient in gradients])
    assert gradient_norm(model) == pytest.approx(float(torch.linalg.vector_norm(together)), rel=1e-5)
    after = [parameter.grad for parameter in model.parameters.values() if parameter.grad is not None]
    assert all(torch.equal(old, new) for old, new in zip(gradients, after, strict=True))


def test_a_trained_step_says_it_and_its_rate() -> None:
    model = ToyModel(seed=1)
    trainer = Trainer(
        model=model, optimizer=AdamW(AdamWSettings(), model), learning_rate=lambda step: step / 100, micro_batch_size=1
    )
    done = trainer.train(3, toy_samples(3))
    assert done.learning_rate == 0.03
    assert done.gradient_norm > 0
