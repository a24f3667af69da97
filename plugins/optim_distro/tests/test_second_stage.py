"""The second stage `rmsprop`: decoded values, their running mean squares, and equal bits of both everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from psyche_core.errors import ModelError
from psyche_core.testing.optimizer import Replica, digest, play_rounds, shared
from psyche_core.testing.toy_model import ToyModel
from psyche_optim_distro.chunks.layout import build_layout
from psyche_optim_distro.chunks.tiles import Workspace
from psyche_optim_distro.direction.aggregation import Aggregator
from psyche_optim_distro.direction.rmsprop import RMSprop
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.settings import DistroSettings

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def optimizer_of(model: ToyModel, **changes: Any) -> DistroOptimizer:
    given = {"compression_topk": 4, "compression_chunk": 16, "quantize_1bit": True, "second_stage": "rmsprop", **changes}
    return DistroOptimizer(DistroSettings.model_validate(given), model)


# ---------------------------------------------------------------------------------------------------------- mean squares


def test_mean_squares_and_directions_are_the_formulas_bits() -> None:
    """One float32 operation after another, here in numpy, over updates of many sizes."""
    layout = build_layout({"a": (3, 5), "b": (7,)}, chunk=4, topk=2)
    stage = RMSprop(layout, CPU, workspace=Workspace(CPU))
    generator = np.random.default_rng(0)
    squares, correction = np.zeros(layout.total, np.float32), np.float32(0)
    kept, added = np.float32(0.95), np.float32(0.05)
    for number in range(1, 301):
        update = (generator.standard_normal(layout.total) * 10.0 ** generator.integers(-6, 6, layout.total)).astype(np.float32)
        update[generator.random(layout.total) < 0.3] = 0
        squares = squares * kept + update * update * added
        squares[squares <= np.float32(2.0**-64)] = 0
        correction = correction * kept + added
        expected = update / (np.sqrt(squares / correction) + np.float32(1e-8))
        stage.begin()
        parts = [
            stage.divide(torch.from_numpy(update[cut].copy()), start=cut.start) for cut in (slice(0, 9), slice(9, layout.total))
        ]
        assert torch.cat(parts).numpy().tobytes() == expected.tobytes()
        assert float(stage.state["correction"][0]) == pytest.approx(1 - 0.95**number, rel=1e-6)
    flat = torch.cat(
        [stage.state[f"mean_square.{entry.name}"].view(-1) for entry in sorted(layout.parameters, key=lambda e: e.start)]
    )
    assert flat.numpy().tobytes() == squares.tobytes()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_bits_of_the_cpu() -> None:
    """Replicas on both apply the same payloads for 30 rounds."""
    shapes = {"w": (256, 192), "odd": (97, 30), "norm": (192,)}
    sender = Replica(model := ToyModel(shapes), optimizer_of(model, compression_chunk=64, compression_topk=8))
    other = ToyModel(shapes)
    for parameter in other.parameters.values():
        parameter.data = parameter.data.cuda()
    replica = optimizer_of(other, compression_chunk=64, compression_topk=8)
    for step in range(1, 31):
        payload = sender.train(step, data=step, learning_rate=0.003)
        sender.optimizer.apply(step, [payload], learning_rate=0.003, own_accepted=True)
        replica.apply(step, [payload], learning_rate=0.003, own_accepted=False)
        assert digest(shared(replica)) == digest(shared(sender.optimizer))


def test_mean_squares_fade_to_zero_and_never_become_subnormal() -> None:
    layout = build_layout({"a": (4,)}, chunk=4, topk=2)
    stage = RMSprop(layout, CPU, workspace=Workspace(CPU))
    seen = set()
    for number in range(1200):
        stage.begin()
        stage.divide(torch.full((4,), 2.0**-20 if number == 0 else 0.0), start=0)
        seen.add(float(stage.state["mean_square.a"][0]))
    assert min(seen) == 0.0
    assert min(seen - {0.0}) > 2.0**-64


def test_a_step_of_the_masters_is_the_formula() -> None:
    """masters decay - step d, each product and difference rounded by itself, with the tensors' own rates."""
    rates = {"by_name": [{"pattern": "layers.2.mlp.weight", "rate": 11.3, "weight_decay": 0.3}]}
    optimizer = optimizer_of(ToyModel(), weight_decay=0.1, rates=rates)
    sender = Replica(model := ToyModel(), optimizer_of(model))
    payload, rate = sender.train(1, data=1, learning_rate=0.01), 0.01
    before = {name: master.numpy().copy() for name, master in optimizer.masters.items()}
    layout = optimizer._layout
    aggregator = Aggregator(layout, CPU)
    update = torch.empty(layout.total)
    for tile, values in aggregator.vote_directions([optimizer._updater.decode(payload)], signs=False):
        update[tile.start : tile.stop] = values
    optimizer.apply(1, [payload], learning_rate=rate, own_accepted=False)
    direction = RMSprop(layout, CPU, workspace=Workspace(CPU))
    direction.begin()
    steps = direction.divide(update, start=0)
    for entry in layout.parameters:
        factor, decay = (11.3, 0.3) if entry.name == "layers.2.mlp.weight" else (1.0, 1.0)
        moved = steps[entry.start : entry.stop].view(entry.shape).numpy()
        expected = before[entry.name] * np.float32(1 - rate * 0.1 * decay) - moved * np.float32(rate * factor)
        assert optimizer.masters[entry.name].numpy().tobytes() == expected.tobytes(), entry.name
        assert 0.5 < float(np.abs(moved[moved != 0]).mean()) < 2, "the first step's elements are near 1"


# --------------------------------------------------------------------------------------------------------- the optimizer


@pytest.mark.parametrize("rounds", [60, pytest.param(500, marks=pytest.mark.soak)])
def test_replicas_stay_equal(rounds: int) -> None:
    """With other numbers of threads, with and without compiled code in `compress`."""
    replicas = []
    for compiled in (True, False, True):
        model = ToyModel()
        settings = DistroSettings(
            compression_topk=4, compression_chunk=16, quantize_1bit=True, weight_decay=0.1, second_stage="rmsprop"
        )
        replicas.append(Replica(model, DistroOptimizer(settings, model, compiled=compiled)))
    counts = iter(range(10**6))

    def compare() -> None:
        torch.set_num_threads(2 if next(counts) % 50 == 49 else 1)
        assert len({digest(shared(replica.optimizer)) for replica in replicas}) == 1

    play_rounds(replicas, rounds=rounds, learning_rate=0.003, after_round=compare)


def test_it_needs_votes() -> None:
    with pytest.raises(ValidationError, match=r'second_stage = "rmsprop" needs quantize_1bit = true'):
        DistroSettings(second_stage="rmsprop")
    with pytest.raises(ValidationError, match="second_stage"):
        DistroSettings.model_validate({"quantize_1bit": True, "second_stage": "adam"})


def test_without_it_there_is_no_public_state() -> None:
    model = ToyModel()
    assert DistroOptimizer(DistroSettings(quantize_1bit=True), model).public_state == {}


@pytest.mark.parametrize("name", ["correction", "mean_square.w"])
@pytest.mark.parametrize("value", [-1e-9, float("nan")])
def test_a_state_that_no_updates_give_is_refused_and_changes_nothing(name: str, value: float) -> None:
    optimizer = optimizer_of(ToyModel({"v": (6,), "w": (3, 4)}))
    before = {name: tensor.clone() for name, tensor in optimizer.public_state.items()}
    state = {name: tensor + 1 for name, tensor in before.items()}
    state[name].view(-1)[-1] = value
    with pytest.raises(ModelError, match=rf"^{name} of the optimizer's public state holds values below 0 or NaN"):
        optimizer.load_public_state(state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in optimizer.public_state.items())
    state[name].view(-1)[-1] = -0.0
    optimizer.load_public_state(state)
