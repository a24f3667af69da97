"""What DisTrO shows of its momentum, and that statistics of it change no bit."""

from __future__ import annotations

import pytest
import torch

from psyche_core.testing.toy_model import ToyModel, toy_samples
from psyche_core.training.local_run import LocalRun
from psyche_core.training.trainer import Trainer
from psyche_core.training.update_statistics import UpdateStatistics
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.settings import DistroSettings


def test_a_member_alone_that_sends_everything_moves_as_its_momentum_says() -> None:
    model = ToyModel({"layers.0.weight": (16, 16), "layers.1.weight": (16, 16)}, seed=1)
    settings = DistroSettings(compression_topk=256, compression_chunk=16, quantize_1bit=False, compression_decay=0.9)
    optimizer = DistroOptimizer(settings, model)
    statistics = UpdateStatistics(optimizer, every=1)
    model.gradients(toy_samples(1), micro_batch_size=2)
    payload = optimizer.compress(1, learning_rate=0.01)
    statistics.trained(1)
    with statistics.around(1):
        optimizer.apply(1, [payload], learning_rate=0.01, own_accepted=True)
    (found,) = statistics.take()
    assert found.sign_agreement is not None
    assert found.sign_agreement > 0.99, "but for values that bfloat16 rounds across zero"
    assert found.update_norm == pytest.approx(0.01 * 512**0.5, rel=1e-3), "every value moves by the learning rate"
    assert found.momentum_norm == pytest.approx(float(torch.linalg.vector_norm(torch.stack(gradients(model)) * 0.01)))


def gradients(model: ToyModel) -> list[torch.Tensor]:
    found = [parameter.grad for parameter in model.parameters.values()]
    return [gradient for gradient in found if gradient is not None]


@pytest.mark.parametrize("compiled", [False, True])
def test_statistics_change_no_bit(compiled: bool) -> None:
    digests = []
    for measures in (False, True):
        model = ToyModel(seed=1)
        optimizer = DistroOptimizer(DistroSettings(compression_topk=4, compression_chunk=8), model, compiled=compiled)
        trainer = Trainer(model=model, optimizer=optimizer, learning_rate=lambda _: 0.01, micro_batch_size=2)
        run = LocalRun([trainer], statistics=trainer.update_statistics(every=1) if measures else None)
        for step in range(1, 8):
            run.train(step, [toy_samples(step)])
        run.finish()
        digests.append(trainer.full_digest())
    assert digests[0] == digests[1]
