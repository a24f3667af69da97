from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from psyche_core.builtin.adamw import HEADER, AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.errors import ConfigError, ModelError, NonFiniteError, PayloadRejected
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.testing.optimizer import OptimizerConformance


class TestAdamW(OptimizerConformance):
    """Moments live with the sender: a refused payload's gradient stays in them, the payload itself is not sent again."""

    resends_refused = False

    def make_optimizer(self, model: Model) -> Optimizer:
        return AdamW(AdamWSettings(), model)


class TestAdamWClipped(TestAdamW):
    def make_optimizer(self, model: Model) -> Optimizer:
        return AdamW(AdamWSettings(clip_grad_norm=1.0, weight_decay=0.0, betas=(0.9, 0.999)), model)


class TestAdamWWithRateGroups(TestAdamW):
    def make_optimizer(self, model: Model) -> Optimizer:
        rates = {"embedding": 6.25, "norm": 0.5, "weight_decay": {"norm": 0}, "by_name": [{"pattern": "layers.2.*", "rate": 3}]}
        return AdamW(AdamWSettings.model_validate({"rates": rates}), model)


class Vectors(Model):
    """Two bare parameters; the test writes their gradients."""

    def __init__(self, seed: int = 0, *, rows: int = 7) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._parameters = {
            "bias": torch.nn.Parameter(torch.randn(5, generator=generator)),
            "weight": torch.nn.Parameter(torch.randn(rows, 3, generator=generator)),
        }

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return self._parameters

    @property
    def vocab_size(self) -> int:
        return 2

    def gradients(self, samples: Samples, *, micro_batch_size: int) -> float:
        raise NotImplementedError

    def loss(self, samples: Samples, *, micro_batch_size: int) -> float:
        raise NotImplementedError

    def save(self, directory: Path, *, parameters: Any) -> None:
        raise NotImplementedError

    def set_gradients(self, seed: int, *, scale: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        for tensor in self._parameters.values():
            tensor.grad = scale * torch.randn(tensor.shape, generator=generator)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def replica(*, rows: int = 7, **changes: Any) -> tuple[Vectors, AdamW]:
    model = Vectors(rows=rows)
    return model, AdamW(AdamWSettings(**changes), model)


def payload(seed: int, step: int = 1, **changes: Any) -> bytes:
    model, optimizer = replica(**changes)
    model.set_gradients(seed)
    return optimizer.compress(step, learning_rate=1e-3)


def bits(optimizer: AdamW) -> bytes:
    return b"".join(master.numpy().tobytes() for master in optimizer.masters.values())


def test_one_replica_follows_torch_adamw() -> None:
    model, optimizer = replica(betas=(0.9, 0.99), weight_decay=0.2)
    theirs = {name: torch.nn.Parameter(tensor.detach().clone()) for name, tensor in model.parameters.items()}
    torch_optimizer = torch.optim.AdamW(theirs.values(), lr=0.01, betas=(0.9, 0.99), weight_decay=0.2, eps=1e-8)
    for step in range(1, 21):
        model.set_gradients(step)
        for name, tensor in theirs.items():
            tensor.grad = model.parameters[name].grad
        torch_optimizer.step()
        optimizer.apply(step, [optimizer.compress(step, learning_rate=0.01)], learning_rate=0.01, own_accepted=True)
    for name, master in optimizer.masters.items():
        # 20 steps of 0.01 moved by a direction rounded to 8 bits
        torch.testing.assert_close(master, theirs[name].detach(), rtol=0, atol=20 * 0.01 * 1.5 * 2**-9)


def test_apply_is_the_mean_and_ignores_order() -> None:
    payloads = [payload(seed) for seed in range(4)]
    results = set()
    for order in range(5):
        _, optimizer = replica()
        shuffled = list(payloads)
        random.Random(order).shuffle(shuffled)
        optimizer.apply(1, shuffled, learning_rate=0.5, own_accepted=False)
        results.add(bits(optimizer))
    assert len(results) == 1

    _, optimizer = replica(weight_decay=0.0)
    before = {name: master.clone() for name, master in optimizer.masters.items()}
    optimizer.apply(1, payloads, learning_rate=0.5, own_accepted=False)
    directions = torch.stack([torch.frombuffer(bytearray(p), dtype=torch.bfloat16, offset=HEADER.size) for p in payloads])
    mean = directions.double().mean(0)  # (5 + 21,)
    torch.testing.assert_close((before["bias"] - optimizer.masters["bias"]).double(), 0.5 * mean[:5], rtol=0, atol=1e-6)
    moved = (before["weight"] - optimizer.masters["weight"]).double().flatten()
    torch.testing.assert_close(moved, 0.5 * mean[5:], rtol=0, atol=1e-6)


def test_apply_gives_the_same_bits_with_many_threads() -> None:
    """`exact`: elementwise operations in a fixed order. 60 000 values, so that torch does split the work."""
    payloads = [payload(seed, rows=20_000) for seed in range(5)]
    results = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        _, optimizer = replica(rows=20_000)
        assert optimizer.exact
        for step in range(3):
            optimizer.apply(step, payloads, learning_rate=0.3, own_accepted=False)
        results.append(bits(optimizer))
    assert results[0] == results[1] == results[2]


def test_apply_equals_exact_arithmetic_rounded_once_per_operation() -> None:
    """Python floats are IEEE float64 with one rounding per operation: a machine with fused operations must still agree."""
    payloads = sorted((payload(seed) for seed in range(3)), key=lambda p: hashlib.sha256(p).digest())
    _, optimizer = replica()
    before = [float(value) for master in optimizer.masters.values() for value in master.flatten()]
    optimizer.apply(1, payloads, learning_rate=0.37, own_accepted=False)
    after = [float(value) for master in optimizer.masters.values() for value in master.flatten()]
    rows = [torch.frombuffer(bytearray(p), dtype=torch.bfloat16, offset=HEADER.size).tolist() for p in payloads]
    expected = []
    for value, column in zip(before, zip(*rows, strict=True), strict=True):
        total = 0.0
        for direction in column:
            total += direction
        expected.append(value * (1.0 - 0.37 * 0.1) - total / 3 * 0.37)
    assert torch.equal(torch.tensor(after), torch.tensor(expected, dtype=torch.float64).float())


def test_late_joiner_agrees_from_its_first_round() -> None:
    _, old = replica()
    for step in range(1, 4):
        old.apply(step, [payload(step)], learning_rate=0.1, own_accepted=False)
    joiner_model, joiner = replica()
    joiner_model.set_gradients(9)
    joiner.compress(1, learning_rate=0.1)
    joiner.load_parameters(old.masters)
    for optimizer in (old, joiner):
        optimizer.apply(4, [payload(4)], learning_rate=0.1, own_accepted=False)
    assert bits(old) == bits(joiner)


def test_load_parameters_forgets_the_moments() -> None:
    model, optimizer = replica()
    model.set_gradients(1)
    first = optimizer.compress(1, learning_rate=0.1)
    model.set_gradients(2)
    optimizer.compress(2, learning_rate=0.1)
    optimizer.load_parameters(dict(Vectors().parameters))
    model.set_gradients(1)
    assert optimizer.compress(3, learning_rate=0.1) == first


def test_load_parameters_refuses_other_tables_and_changes_nothing() -> None:
    _, optimizer = replica()
    before = bits(optimizer)
    with pytest.raises(ModelError, match="our 2 parameters"):
        optimizer.load_parameters({"bias": torch.zeros(5)})
    with pytest.raises(ModelError, match="weight must have shape"):
        optimizer.load_parameters({"bias": torch.zeros(5), "weight": torch.zeros(3, 7)})
    assert bits(optimizer) == before


def test_no_payloads_change_nothing() -> None:
    _, optimizer = replica()
    before = bits(optimizer)
    optimizer.apply(1, [], learning_rate=0.1, own_accepted=False)
    assert bits(optimizer) == before


def test_compute_weights_are_written_and_masters_are_not() -> None:
    model, optimizer = replica()
    before = bits(optimizer)
    loads: list[Callable[[], None]] = [lambda: optimizer.load_lookahead(learning_rate=0.1), optimizer.load_masters]
    for load in loads:
        with torch.no_grad():
            for tensor in model.parameters.values():
                tensor.zero_()
        assert bits(optimizer) == before
        load()
        assert all(torch.equal(tensor, optimizer.masters[name]) for name, tensor in model.parameters.items())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e20])
def test_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    model, optimizer = replica()
    model.set_gradients(1)
    gradient = model.parameters["weight"].grad
    assert gradient is not None
    gradient[2, 1] = bad
    with pytest.raises(NonFiniteError, match="step 1"):
        optimizer.compress(1, learning_rate=0.1)
    model.set_gradients(3)
    assert optimizer.compress(1, learning_rate=0.1) == payload(3)


def test_clipping_makes_scale_irrelevant() -> None:
    results = []
    for scale in (10.0, 1000.0):
        model, optimizer = replica(clip_grad_norm=1.0)
        model.set_gradients(1)
        optimizer.compress(1, learning_rate=0.1)
        model.set_gradients(2, scale=scale)
        results.append(torch.frombuffer(bytearray(optimizer.compress(2, learning_rate=0.1)), dtype=torch.bfloat16, offset=17))
    torch.testing.assert_close(results[0], results[1], rtol=2**-7, atol=1e-4)


def test_parameter_the_loss_did_not_reach_stands_still() -> None:
    model, optimizer = replica(weight_decay=0.0)
    model.set_gradients(1)
    model.parameters["bias"].grad = None
    before = optimizer.masters["bias"].clone()
    optimizer.apply(1, [optimizer.compress(1, learning_rate=0.1)], learning_rate=0.1, own_accepted=True)
    assert torch.equal(optimizer.masters["bias"], before)


@given(
    betas=st.sampled_from([(0.9, 0.95), (0.9, 0.999), (0.0, 0.5), (0.5, 0.999)]), spikes=st.lists(st.floats(0, 1e4), max_size=12)
)
@settings(deadline=None, max_examples=40)
def test_every_honest_payload_passes_check(betas: tuple[float, float], spikes: list[float]) -> None:
    model, optimizer = replica(betas=betas)
    for step, scale in enumerate([*spikes, 1e6], start=1):
        model.set_gradients(step, scale=scale)
        sent = optimizer.compress(step, learning_rate=0.1)
        assert len(sent) == optimizer.max_payload_bytes
        optimizer.check(sent)


def test_check_refuses_what_is_not_ours() -> None:
    _, optimizer = replica()
    good = payload(1)
    other_table = payload(1, rows=8)
    for bad, sentence in [
        (b"", "bytes, got 0"),
        (good[:-1], "bytes, got"),
        (good + b"\0", "bytes, got"),
        (other_table, "bytes, got"),
        (good[:8] + b"\x02" + good[9:], "header"),
        (good[:9] + bytes(8) + good[17:], "header"),
        (good[:-2] + b"\x80\x7f", "not finite"),  # inf
        (good[:-2] + b"\xc0\x7f", "not finite"),  # NaN
        (good[:-2] + b"\x80\x40", "beyond"),  # 4.0
    ]:
        with pytest.raises(PayloadRejected, match=sentence):
            optimizer.check(bad)
    optimizer.check(good)


@given(st.binary(max_size=80))
def test_check_raises_nothing_else(blob: bytes) -> None:
    _, optimizer = replica()
    with pytest.raises(PayloadRejected):
        optimizer.check(blob)


@pytest.mark.parametrize(
    "bad",
    [
        {"betas": (0.99, 0.9)},
        {"betas": (1.0, 0.9)},
        {"eps": 0.0},
        {"weight_decay": -1.0},
        {"momentum": 0.9},
        {"eps": float("nan")},
    ],
)
def test_settings_without_meaning_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        AdamWSettings(**bad)


def test_each_tensor_has_its_own_rate_and_decay() -> None:
    """One step of lr * f times the sent direction; the decay has its own factor and not the rate's."""
    plain_model, plain = replica(weight_decay=0.0)
    model, grouped = replica(weight_decay=0.2, rates={"norm": 8.0, "matrix": 0.5, "weight_decay": {"norm": 0, "matrix": 3}})
    before = {name: master.clone() for name, master in grouped.masters.items()}
    for each in (plain_model, model):
        each.set_gradients(4)
    payload = grouped.compress(1, learning_rate=0.01)
    assert payload == plain.compress(1, learning_rate=0.01), "what is sent has no rate in it"

    for optimizer in (plain, grouped):
        optimizer.apply(1, [payload], learning_rate=0.01, own_accepted=True)
    for name, rate, decay in (("bias", 8.0, 0.0), ("weight", 0.5, 0.6)):
        direction = (before[name].double() - plain.masters[name].double()) / 0.01
        expected = before[name].double() * (1 - 0.01 * decay) - 0.01 * rate * direction
        torch.testing.assert_close(grouped.masters[name].double(), expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("rates", [{}, {"by_name": [{"pattern": "*", "rate": 1.0}]}])
def test_factors_of_one_change_no_bit(rates: dict[str, Any]) -> None:
    found = []
    for given_rates in (None, rates):
        model, optimizer = replica(rates=given_rates)
        model.set_gradients(4)
        optimizer.apply(1, [optimizer.compress(1, learning_rate=0.013)], learning_rate=0.013, own_accepted=True)
        found.append({name: master.clone() for name, master in optimizer.masters.items()})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_an_entry_for_no_parameter_is_refused() -> None:
    with pytest.raises(ConfigError, match="fits none of the model's 2 parameters"):
        replica(rates={"by_name": [{"pattern": "weights", "rate": 2.0}]})
