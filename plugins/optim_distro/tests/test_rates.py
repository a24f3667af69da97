"""Rate groups in DisTrO: each tensor's own step, the same bits on both backends, every thread count and every replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from psyche_core.errors import ConfigError
from psyche_core.hookspecs import OptimizerContext
from psyche_core.interfaces.rate_groups import RateGroups, TensorRate
from psyche_core.testing.optimizer import Replica, digest, play_rounds
from psyche_core.testing.toy_model import TOY_SHAPES, ToyModel
from psyche_optim_distro import hooks
from psyche_optim_distro.backends.choice import updater_for
from psyche_optim_distro.backends.numba import numba_available
from psyche_optim_distro.chunks.layout import Layout, build_layout
from psyche_optim_distro.chunks.rates import cut_by_rate
from psyche_optim_distro.chunks.tiles import Workspace
from psyche_optim_distro.direction.aggregation import Aggregator
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.top_k import Selection
from psyche_optim_distro.settings import DistroSettings
from psyche_optim_distro.value_format import ValueFormat

CPU = torch.device("cpu")
COMPILED = [False, pytest.param(True, marks=pytest.mark.skipif(not numba_available(), reason="needs the extra fast"))]
RATES = {
    "head": 7.3,
    "embedding": 6.1,
    "norm": 0.3,
    "matrix": 1.7,
    "weight_decay": {"embedding": 0.0, "matrix": 1.9},
    "by_name": [{"pattern": "layers.2.*", "rate": 11.3, "weight_decay": 0.2}],
}
SHAPES = {
    "lm_head.weight": (128, 64),
    "model.embed_tokens.weight": (128, 64),
    "layers.0.a.weight": (64, 64),
    "layers.1.a.weight": (64, 64),
    "layers.2.a.weight": (192, 64),
    "layers.2.odd.weight": (97, 30),
    "layers.2.stack": (2, 48, 40),
    "norm.weight": (64,),
    "odd.bias": (5,),
    "none": (0, 3),
}


def optimizer_of(model: ToyModel, *, compiled: bool = False, **changes: Any) -> DistroOptimizer:
    given = {"compression_topk": 4, "quantize_1bit": True, "weight_decay": 0.1, "clip_grad_norm": 1.0, "rates": RATES, **changes}
    return DistroOptimizer(DistroSettings.model_validate(given), model, compiled=compiled)


def payload(layout: Layout, generator: np.random.Generator, values: ValueFormat) -> bytes:
    """Every chunk sends all it may, at random places."""
    chunks = [np.repeat(entry.chunks, entry.topk) for entry in layout.classes]
    indices = [
        np.sort(np.argsort(generator.random((entry.chunks.size, entry.size)), axis=1)[:, : entry.topk], axis=1).reshape(-1)
        for entry in layout.classes
    ]
    sent = generator.choice([-1.0, 1.0], sum(part.size for part in indices)).astype(np.float32)
    if values is not ValueFormat.SIGNS:
        sent *= generator.integers(1, 100, sent.size).astype(np.float32)
    return codec.encode(layout, Selection(np.concatenate(chunks), np.concatenate(indices), sent), values=values)


def moved(
    layout: Layout,
    payloads: Sequence[bytes],
    rates: Mapping[str, TensorRate],
    *,
    compiled: bool,
    values: ValueFormat = ValueFormat.SIGNS,
    learning_rate: float = 1.3e-3,
) -> torch.Tensor:
    masters = torch.randn(layout.total, generator=torch.Generator().manual_seed(1))
    by = updater_for(layout, values, CPU, workspace=Workspace(CPU), compiled=compiled, rates=rates)
    by.update(masters, [by.decode(each) for each in payloads], learning_rate=learning_rate, weight_decay=0.13)
    return masters


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.view(torch.int32), right.view(torch.int32))


@pytest.mark.parametrize("values", [ValueFormat.SIGNS, ValueFormat.FLOAT32])
@pytest.mark.parametrize("compiled", COMPILED)
def test_each_tensor_takes_its_own_step(compiled: bool, values: ValueFormat) -> None:
    """Against the formula in numpy: factors in float64, rounded to float32, then one rounded product and one difference."""
    layout = build_layout(SHAPES, chunk=32, topk=9)
    rates = RateGroups.model_validate(RATES).tensor_rates(SHAPES)
    assert len(set(rates.values())) == 5
    payloads = [payload(layout, np.random.default_rng(seed), values) for seed in range(3)]
    decoded = [codec.decode(layout, each, values=values) for each in payloads]
    direction = Aggregator(layout, CPU).direction(decoded, one_bit=values is ValueFormat.SIGNS).numpy()

    expected = torch.randn(layout.total, generator=torch.Generator().manual_seed(1)).numpy()
    for entry in layout.parameters:
        own, rate = slice(entry.start, entry.stop), rates[entry.name]
        kept, step = np.float32(1 - 1.3e-3 * (0.13 * rate.weight_decay)), np.float32(1.3e-3 * rate.rate)
        expected[own] = expected[own] * kept - step * direction[own]
    assert same_bits(moved(layout, payloads, rates, compiled=compiled, values=values), torch.from_numpy(expected))


TABLES = st.lists(st.lists(st.integers(1, 70), min_size=1, max_size=3), min_size=1, max_size=6)
FACTORS = st.sampled_from([1.0, 0.3, 6.25, 1e-6, 123.4])


@given(TABLES, st.integers(1, 80), st.lists(st.tuples(FACTORS, FACTORS), min_size=6, max_size=6), st.integers(500, 30_000))
@settings(deadline=None)
def test_a_tile_is_cut_where_the_rate_changes(
    shapes: list[list[int]], chunk: int, drawn: list[tuple[float, float]], limit: int
) -> None:
    layout = build_layout({f"p{number}": shape for number, shape in enumerate(shapes)}, chunk=chunk, topk=3)
    rates = {f"p{number}": TensorRate(*pair) for number, pair in enumerate(drawn)}
    for group in layout.groups:
        for tile in group.tiles(limit):
            parts = cut_by_rate(tile, layout, rates)
            assert parts[0][0].start == tile.start
            assert parts[-1][0].stop == tile.stop
            assert sum(part.chunk_count for part, _ in parts) == tile.chunk_count
            for (before, rate), (after, other) in pairwise(parts):
                assert before.stop == after.start
                assert before.first_chunk + before.chunk_count == after.first_chunk
                assert rate != other
            for part, rate in parts:
                inside = [entry for entry in layout.parameters if entry.start < part.stop and part.start < entry.stop]
                assert {rates[entry.name] for entry in inside} == {rate}


@pytest.mark.skipif(not numba_available(), reason="needs the extra fast")
@given(
    TABLES,
    st.integers(1, 80),
    st.integers(1, 12),
    st.lists(st.tuples(FACTORS, FACTORS), min_size=6, max_size=6),
    st.floats(1e-8, 10),
    st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_both_backends_give_the_same_bits_for_any_table_and_rates(
    shapes: list[list[int]], chunk: int, topk: int, drawn: list[tuple[float, float]], rate: float, seed: int
) -> None:
    layout = build_layout({f"p{number}": shape for number, shape in enumerate(shapes)}, chunk=chunk, topk=topk)
    rates = {f"p{number}": TensorRate(*pair) for number, pair in enumerate(drawn)}
    generator = np.random.default_rng(seed)
    payloads = [payload(layout, generator, ValueFormat.SIGNS) for _ in range(3)]
    found = [moved(layout, payloads, rates, compiled=compiled, learning_rate=rate) for compiled in (True, False)]
    assert same_bits(*found)


@pytest.mark.parametrize("compiled", COMPILED)
def test_threads_and_order_do_not_matter(compiled: bool) -> None:
    shapes = {f"w{number}": (256, 768) for number in range(6)}
    layout = build_layout(shapes, chunk=64, topk=8)
    rates = {name: TensorRate(1 + number, number / 3) for number, name in enumerate(sorted(shapes))}
    payloads = [payload(layout, np.random.default_rng(seed), ValueFormat.SIGNS) for seed in range(4)]
    expected = moved(layout, payloads, rates, compiled=compiled)
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        assert same_bits(moved(layout, payloads[::-1], rates, compiled=compiled), expected)


@pytest.mark.parametrize("one_bit", [True, False])
@pytest.mark.parametrize("compiled", COMPILED)
def test_factors_of_one_change_no_bit(compiled: bool, one_bit: bool) -> None:
    digests = []
    for rates in (None, {}, {"head": 1.0, "by_name": [{"pattern": "*", "rate": 1.0}]}):
        model = ToyModel(SHAPES)
        replica = Replica(model, optimizer_of(model, compiled=compiled, quantize_1bit=one_bit, rates=rates))
        seen: list[str] = []
        play_rounds(
            [replica],
            rounds=6,
            learning_rate=0.01,
            after_round=lambda seen=seen, replica=replica: seen.extend(  # type: ignore[misc]  # defaults bind the loop's variables
                (digest(replica.optimizer.masters), digest(replica.model.parameters))
            ),
        )
        digests.append(seen)
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests[0])) > 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_look_ahead_takes_the_step_that_apply_takes(dtype: torch.dtype) -> None:
    model = ToyModel(SHAPES, dtype=dtype)
    optimizer = optimizer_of(model)
    rates = RateGroups.model_validate(RATES).tensor_rates(SHAPES)
    Replica(model, optimizer).train(1, data=1, learning_rate=0.01)
    optimizer.load_lookahead(learning_rate=0.013)
    for name, master in optimizer.masters.items():
        step = torch.tensor(0.013 * rates[name].rate, dtype=torch.float64).float()
        expected = (master - step * torch.sign(optimizer.delta[name])).to(dtype)
        assert torch.equal(model.parameters[name], expected), name


def test_a_factor_of_a_whole_tensor_would_change_nothing_in_delta() -> None:
    """Why delta is kept in units of the plain rate: its signs and what is sent stay the same (a power of two, no rounding)."""
    sent, signs = [], []
    for factor in (1.0, 8.0):
        model = ToyModel(SHAPES)
        optimizer = optimizer_of(model, clip_grad_norm=None, rates=None)
        for step in (1, 2, 3):
            generator = torch.Generator().manual_seed(step)
            for name, parameter in model.parameters.items():
                gradient = torch.randn(parameter.shape, generator=generator)
                parameter.grad = gradient * (factor if name == "lm_head.weight" else 1.0)
            sent.append(optimizer.compress(step, learning_rate=0.01))
        signs.append({name: torch.sign(delta) for name, delta in optimizer.delta.items()})
    assert sent[:3] == sent[3:]
    assert all(torch.equal(signs[0][name], signs[1][name]) for name in signs[0])


@pytest.mark.skipif(not numba_available(), reason="needs the extra fast")
@pytest.mark.parametrize(
    "changes", [{}, {"quantize_1bit": False}, {"rates": {**RATES, "reference_width": 16}}], ids=["signs", "values", "width"]
)
@pytest.mark.parametrize("rounds", [20, pytest.param(250, marks=pytest.mark.soak)])
def test_replicas_of_both_backends_stay_equal_and_one_that_joins_follows(changes: dict[str, Any], rounds: int) -> None:
    replicas = []
    for number in range(3):
        model = ToyModel(SHAPES)
        replicas.append(Replica(model, optimizer_of(model, compiled=number % 2 == 0, **changes)))

    def equal() -> None:
        assert len({digest(replica.optimizer.masters) for replica in replicas}) == 1

    play_rounds(replicas, rounds=rounds, learning_rate=0.01, after_round=equal)
    model = ToyModel(SHAPES, seed=9)
    joined = Replica(model, optimizer_of(model, compiled=False, **changes))
    joined.optimizer.load_parameters({name: master.clone() for name, master in replicas[0].optimizer.masters.items()})
    replicas.append(joined)
    play_rounds(replicas, rounds=rounds, learning_rate=0.01, after_round=equal)


def test_an_entry_for_no_parameter_is_refused_when_the_optimizer_is_built() -> None:
    (registration,) = hooks.psyche_register_optimizers()
    given = registration.settings.model_validate({"rates": {"by_name": [{"pattern": "*.router.*", "rate": 2}]}})
    with pytest.raises(ConfigError, match="fits none of the model's 9 parameters"):
        registration.create(OptimizerContext(settings=given, model=ToyModel(TOY_SHAPES)))


def test_wrong_rates_are_refused_with_the_settings() -> None:
    with pytest.raises(ValidationError, match="norms"):
        DistroSettings.model_validate({"rates": {"norms": 2}})
