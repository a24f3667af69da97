"""Statistics of the optimizer: the numbers that the definitions give, and that nothing changes by measuring."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.builtin.dummy_optimizer import DummyOptimizer
from psyche_core.telemetry.events import OptimizerStatistics
from psyche_core.testing.toy_model import ToyModel, toy_samples
from psyche_core.training.local_run import LocalRun
from psyche_core.training.trainer import Trainer
from psyche_core.training.update_statistics import SAMPLE, UpdateStatistics, group_of

LARGE = {"layers.0.mlp.weight": (300, 200), "layers.1.mlp.weight": (7, 13), "odd.bias": (5,)}


def optimizer_of(*, seed: int = 1) -> tuple[ToyModel, AdamW]:
    model = ToyModel(LARGE, seed=seed)
    return model, AdamW(AdamWSettings(weight_decay=0.0), model)


def step(model: ToyModel, optimizer: AdamW, number: int, *, statistics: UpdateStatistics) -> None:
    model.gradients(toy_samples(number), micro_batch_size=2)
    payload = optimizer.compress(number, learning_rate=0.01)
    statistics.trained(number)
    with statistics.around(number):
        optimizer.apply(number, [payload], learning_rate=0.01, own_accepted=True)


def norm(tensors: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def test_a_group_is_what_differs_in_numbers_only() -> None:
    assert group_of("model.layers.12.self_attn.q_proj.weight") == "model.layers.*.self_attn.q_proj.weight"
    assert group_of("w2.bias") == "w2.bias"


def test_the_numbers_are_those_of_their_definitions() -> None:
    model, optimizer = optimizer_of()
    statistics = UpdateStatistics(optimizer, every=2)
    step(model, optimizer, 1, statistics=statistics)
    assert statistics.take() == (), "step 1 is no multiple of 2"

    before = {name: tensor.clone() for name, tensor in optimizer.masters.items()}
    model.gradients(toy_samples(2), micro_batch_size=2)
    payload = optimizer.compress(2, learning_rate=0.01)
    statistics.trained(2)
    momentum = {name: tensor.clone() for name, tensor in optimizer.momentum.items()}
    with statistics.around(2):
        optimizer.apply(2, [payload], learning_rate=0.01, own_accepted=True)
    mlp, odd = statistics.take()
    assert statistics.take() == ()

    assert (mlp.step, mlp.group, mlp.values) == (2, "layers.*.mlp.weight", 300 * 200 + 7 * 13)
    assert (odd.step, odd.group, odd.values) == (2, "odd.bias", 5)
    for found, names in ((mlp, ["layers.0.mlp.weight", "layers.1.mlp.weight"]), (odd, ["odd.bias"])):
        moved = [before[name] - optimizer.masters[name] for name in names]
        assert found.weight_norm == pytest.approx(norm([optimizer.masters[name] for name in names]))
        assert found.momentum_norm == pytest.approx(norm([momentum[name] for name in names]))
        assert found.update_norm == pytest.approx(norm(moved), rel=1e-5 if found is odd else 0.05)
        agree = sum(int((torch.sign(moved[at]) == torch.sign(momentum[name])).sum()) for at, name in enumerate(names))
        assert found.sign_agreement == pytest.approx(agree / found.values, abs=0.02)
    assert LARGE["layers.0.mlp.weight"][0] * LARGE["layers.0.mlp.weight"][1] > SAMPLE, "one tensor is sampled"


def test_against_the_momentum_of_others_signs_disagree() -> None:
    (model, optimizer), (other_model, other) = optimizer_of(), optimizer_of()
    statistics = UpdateStatistics(optimizer, every=1)
    model.gradients(toy_samples(1), micro_batch_size=2)
    optimizer.compress(1, learning_rate=0.01)
    statistics.trained(1)
    other_model.gradients(toy_samples(1), micro_batch_size=2)
    for parameter in other_model.parameters.values():
        assert parameter.grad is not None
        parameter.grad.neg_()
    payload = other.compress(1, learning_rate=0.01)
    with statistics.around(1):
        optimizer.apply(1, [payload], learning_rate=0.01, own_accepted=False)
    assert [found.sign_agreement for found in statistics.take()] == [0.0, 0.0]


def test_measuring_changes_no_bit() -> None:
    digests = []
    for every in (None, 1):
        model, optimizer = optimizer_of()
        trainer = Trainer(model=model, optimizer=optimizer, learning_rate=lambda _: 0.01, micro_batch_size=2)
        statistics = None if every is None else trainer.update_statistics(every=every)
        run = LocalRun([trainer], statistics=statistics)
        for number in range(1, 6):
            run.train(number, [toy_samples(number)])
        run.finish()
        digests.append(trainer.full_digest())
        if statistics is not None:
            assert [found.step for found in statistics.take() if found.group == "odd.bias"] == [1, 2, 3, 4, 5]
    assert digests[0] == digests[1]


def test_an_optimizer_without_momentum_that_moves_nothing() -> None:
    optimizer = DummyOptimizer(ToyModel({"one.weight": (3, 4), "none": (0,)}))
    statistics = UpdateStatistics(optimizer, every=1)
    statistics.trained(1)
    with statistics.around(1):
        pass
    none, one = statistics.take()
    assert (none.values, none.weight_norm) == (0, 0.0)
    assert one == OptimizerStatistics(1, "one.weight", 12, one.weight_norm, 0.0)
    assert one.weight_norm == pytest.approx(norm([optimizer.masters["one.weight"]]))


class Broken(DummyOptimizer):
    @property
    def momentum(self) -> Mapping[str, Any]:
        message = "no room"
        raise MemoryError(message)


def test_a_failing_measurement_costs_one_warning_and_no_step(caplog: pytest.LogCaptureFixture) -> None:
    statistics = UpdateStatistics(Broken(ToyModel({"one": (3,)})), every=1)
    applied = []
    for number in (1, 2):
        statistics.trained(number)
        with caplog.at_level(logging.WARNING), statistics.around(number):
            applied.append(number)
    assert applied == [1, 2]
    assert [found.momentum_norm for found in statistics.take()] == [None, None], "the rest is measured"
    assert [record.getMessage() for record in caplog.records] == [
        "statistics of the optimizer could not be computed: MemoryError('no room'); training goes on without them"
    ]


def test_a_step_that_we_did_not_train_has_no_momentum_of_ours() -> None:
    (model, optimizer), (other_model, other) = optimizer_of(), optimizer_of()
    statistics = UpdateStatistics(optimizer, every=1)
    other_model.gradients(toy_samples(1), micro_batch_size=2)
    payload = other.compress(1, learning_rate=0.01)
    with statistics.around(1):
        optimizer.apply(1, [payload], learning_rate=0.01, own_accepted=False)
    assert {(found.momentum_norm, found.sign_agreement) for found in statistics.take()} == {(None, None)}
    for number in range(2, 100):
        model.gradients(toy_samples(number), micro_batch_size=2)
        optimizer.compress(number, learning_rate=0.01)
        statistics.trained(number)
    assert len(statistics._own) == 4, "results that are never applied cost no memory"


def test_an_error_of_the_step_itself_is_raised() -> None:
    statistics = UpdateStatistics(DummyOptimizer(ToyModel({"one": (3,)})), every=1)

    def failing() -> None:
        with statistics.around(1):
            int("of the step")

    with pytest.raises(ValueError, match="of the step"):
        failing()
    assert statistics.take() == ()
