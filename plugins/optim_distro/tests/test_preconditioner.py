"""Gradients divided by their running root mean square: the formula, what it changes, and what a member keeps of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from psyche_core.errors import ModelError, NonFiniteError
from psyche_core.testing.optimizer import Replica, digest, play_rounds, shared
from psyche_core.testing.toy_model import ToyModel
from psyche_optim_distro.backends.choice import compressor_for
from psyche_optim_distro.chunks.layout import build_layout
from psyche_optim_distro.chunks.precision import Precision
from psyche_optim_distro.chunks.tiles import Workspace
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.payload.top_k import CoefficientTables
from psyche_optim_distro.preconditioner import Preconditioner
from psyche_optim_distro.settings import DistroSettings
from psyche_optim_distro.value_format import ValueFormat

CPU = torch.device("cpu")
SHAPES = {"a": (16, 24), "b": (24,), "c": ()}
RATE, BETA2, DECAY = 0.01, 0.9, 0.95


def build(*, compiled: bool = False, **settings: Any) -> tuple[ToyModel, DistroOptimizer]:
    model = ToyModel(SHAPES, seed=1)
    given = {"compression_chunk": 8, "compression_topk": 3, "quantize_1bit": True, "gradient_beta2": BETA2, **settings}
    return model, DistroOptimizer(DistroSettings(**given), model, compiled=compiled)


def gradients(step: int, *, factor: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: factor * torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def train(model: ToyModel, optimizer: DistroOptimizer, step: int, *, factor: float = 1.0) -> bytes:
    for name, gradient in gradients(step, factor=factor).items():
        model.parameters[name].grad = gradient
    return optimizer.compress(step, learning_rate=RATE)


@pytest.mark.parametrize("compiled", [False, True])
def test_delta_gathers_adam_s_quotients(compiled: bool) -> None:
    """In numpy, with clipping, as long as nothing is subtracted: each result is refused before the next step."""
    model, optimizer = build(compiled=compiled, compression_decay=DECAY, clip_grad_norm=2.0)
    squares = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    delta = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(1, 6):
        every = {name: gradient.double().numpy() for name, gradient in gradients(step).items()}
        norm = np.sqrt(sum((gradient**2).sum() for gradient in every.values()))
        assert norm > 2
        for name, gradient in every.items():
            clipped = gradient * 2 / norm
            squares[name] = BETA2 * squares[name] + (1 - BETA2) * clipped**2
            quotient = clipped / (np.sqrt(squares[name] / (1 - BETA2**step)) + 1e-8)
            delta[name] = DECAY * delta[name] + RATE * quotient
        train(model, optimizer, step)
        optimizer.apply(step, [], learning_rate=RATE, own_accepted=False)
        for name, found in optimizer.delta.items():
            np.testing.assert_allclose(found.numpy(), delta[name], rtol=2e-4, atol=1e-7)


def test_a_factor_of_all_gradients_changes_nothing() -> None:
    """That is what the division is for, tensor by tensor and element by element."""
    sent = []
    for factor in (1.0, 64.0):
        model, optimizer = build(second_stage="rmsprop")
        sent.append([train(model, optimizer, step, factor=factor) for step in range(1, 6)])
    assert sent[0] == sent[1]
    model, optimizer = build(gradient_beta2=None)
    assert [train(model, optimizer, step) for step in range(1, 6)] != sent[0]


@pytest.mark.parametrize("rounds", [60, pytest.param(500, marks=pytest.mark.soak)])
def test_rounds_of_replicas_end_with_equal_digests(rounds: int) -> None:
    """Mean squares are private: no replica's bits depend on another's, whichever backend it has."""
    replicas = [
        Replica(*build(compiled=compiled, weight_decay=0.1, compression_subtract=0.6)) for compiled in (False, True, True)
    ]
    play_rounds(replicas, rounds=rounds, learning_rate=RATE)
    assert len({digest(shared(replica.optimizer)) for replica in replicas}) == 1
    assert not replicas[0].optimizer.public_state


def test_a_member_that_restarts_goes_on_with_its_mean_squares() -> None:
    model, optimizer = build()
    payload = train(model, optimizer, 1)
    optimizer.apply(1, [payload], learning_rate=RATE, own_accepted=True)
    state = {name: tensor.clone() for name, tensor in optimizer.private_state().items()}
    assert {"delta.a", "mean_square.a", "mean_square.c", "correction"} <= state.keys()
    masters = {name: tensor.clone() for name, tensor in optimizer.masters.items()}

    again_model, again = build()
    again.load_parameters(masters)
    again.load_private_state(state)
    assert train(model, optimizer, 2) == train(again_model, again, 2)

    again.load_parameters(masters)
    assert not any(bool(tensor.any()) for tensor in again.private_state().values()), "others' weights: nothing of one's own"
    with pytest.raises(ModelError, match="below 0"):
        again.load_private_state({**state, "mean_square.a": -state["mean_square.a"]})
    assert not any(bool(tensor.any()) for tensor in again.private_state().values())
    with pytest.raises(ModelError, match="names"):
        again.load_private_state({name: tensor for name, tensor in state.items() if name != "correction"})


def test_gradients_that_are_not_finite_change_nothing() -> None:
    model, optimizer = build()
    train(model, optimizer, 1)
    before = {name: tensor.clone() for name, tensor in optimizer.private_state().items()}
    with pytest.raises(NonFiniteError):
        train(model, optimizer, 2, factor=float("inf"))
    assert all(torch.equal(tensor, before[name]) for name, tensor in optimizer.private_state().items())
    train(model, optimizer, 2)


def test_parameters_without_a_gradient_add_nothing() -> None:
    model, optimizer = build()
    for step in (1, 2):
        for name, gradient in gradients(step).items():
            model.parameters[name].grad = gradient if name == "b" else None
        optimizer.compress(step, learning_rate=RATE)
    assert all(bool(tensor.any()) == (name == "b") for name, tensor in optimizer.delta.items())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("chunk", "topk"), [(1, 1), (7, 3), (48, 8), (64, 8)])
def test_the_compiled_way_divides_as_torch_does(chunk: int, topk: int, kind: torch.dtype) -> None:
    """Three steps with clipping, chunks of other shapes side by side, and a parameter whose gradient is missing in the second."""
    layout = build_layout({"a": (192, 128), "b": (3, 48, 80), "c": (77,), "none": (0, 3)}, chunk=chunk, topk=topk)
    ways = []
    for compiled in (False, True):
        precision = None if compiled else Precision()
        by = compressor_for(layout, ValueFormat.SIGNS, CPU, workspace=Workspace(CPU), precision=precision, compiled=compiled)
        preconditioner, delta = Preconditioner(layout, CPU, beta2=BETA2), torch.zeros(layout.total)
        for step in range(3):
            generator = torch.Generator().manual_seed(step)
            given = {
                entry.name: torch.randn(math.prod(entry.shape), generator=generator).to(kind)
                for entry in layout.parameters
                if (entry.name, step) != ("b", 1)
            }
            tables = CoefficientTables(layout, CPU, by.precision)
            by.compress(delta, given, [], tables, scale=RATE, decay=DECAY, factor=0.5, preconditioner=preconditioner)
        ways.append((delta, preconditioner.state))
    (delta, state), (other, compiled_state) = ways
    torch.testing.assert_close(delta, other, rtol=1e-4, atol=1e-6)
    assert all(float(state[f"mean_square.{name}"].min()) > 0 for name in "abc")
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, compiled_state[name], rtol=1e-5, atol=1e-12)


def test_threads_divide_every_gradient_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = build_layout({"a": (512, 1024), "b": (1024,)}, chunk=64, topk=8)
    generator = torch.Generator().manual_seed(3)
    given = {entry.name: torch.randn(math.prod(entry.shape), generator=generator) for entry in layout.parameters}
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        by = compressor_for(layout, ValueFormat.SIGNS, CPU, workspace=Workspace(CPU), precision=None, compiled=True)
        monkeypatch.setattr("psyche_optim_distro.backends.numba.threads.ELEMENTS_PER_THREAD", 1000)
        preconditioner, delta = Preconditioner(layout, CPU, beta2=BETA2), torch.zeros(layout.total)
        for _ in range(2):
            tables = CoefficientTables(layout, CPU, by.precision)
            by.compress(delta, given, [], tables, scale=RATE, decay=DECAY, preconditioner=preconditioner)
        found.append((delta, preconditioner.mean_squares))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
