"""What one sender of values can do: at most what its votes could, whatever values it sends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from psyche_core.testing.toy_model import ToyModel
from psyche_optim_distro.chunks.layout import Layout, build_layout
from psyche_optim_distro.chunks.transform import as_blocks, dct_basis, decode
from psyche_optim_distro.direction.aggregation import Aggregator
from psyche_optim_distro.direction.normalization import UNIT, normalize_values
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.top_k import Selection
from psyche_optim_distro.settings import DistroSettings
from psyche_optim_distro.value_format import ValueFormat

CPU = torch.device("cpu")
LAYOUT = build_layout({"w": (16, 24), "v": (9,)}, chunk=8, topk=6)
ROUNDING = 0.03
"""Of the norms of what is decoded: more than the integer transform rounds away in any of these tables."""

SIZES = st.floats(-126, 16, width=32).map(lambda exponent: 2.0**exponent)
VALUES = st.one_of(SIZES, SIZES.map(lambda value: -value), st.sampled_from([2.0**-126, 65536.0, -65536.0, 1.0]))


@st.composite
def sent(draw: st.DrawFn, layout: Layout = LAYOUT) -> Selection:
    """Any payload's coefficients."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    chunks, indices, values = [], [], []
    for entry in layout.classes:
        for chunk in entry.chunks.tolist():
            own = draw(st.lists(VALUES, max_size=entry.topk))
            chunks += [chunk] * len(own)
            indices += sorted(random.permutation(entry.size)[: len(own)].tolist())
            values += own
    return Selection(np.array(chunks, np.int64), np.array(indices, np.int64), np.array(values, np.float32))


def exactly(values: Sequence[float]) -> list[int]:
    """`normalize_values` of one chunk in Python's integers."""
    _, exponent = math.frexp(max(map(abs, values)))
    whole = [round(math.ldexp(value, 15 - exponent)) for value in values]
    root = math.isqrt((sum(value * value for value in whole) << 16) // len(whole))
    return [(1 if value > 0 else -1) * ((2 * abs(value) * UNIT * 256 + root) // (2 * root)) for value in whole]


@given(sent())
@settings(max_examples=200, deadline=None)
def test_values_of_any_size_weigh_as_much_as_as_many_votes(part: Selection) -> None:
    amounts = normalize_values(part)
    assert amounts.dtype == np.int32
    assert bool((amounts * np.sign(part.values) >= 0).all())
    for chunk in np.unique(part.chunks):
        own = amounts[part.chunks == chunk].astype(np.float64)
        assert own.tolist() == exactly(part.values[part.chunks == chunk].tolist())
        assert abs(math.sqrt(float(np.mean(own * own))) - UNIT) <= UNIT / 16_000 + 0.5


@given(sent(), st.integers(-40, 40))
@settings(max_examples=50, deadline=None)
def test_a_factor_changes_nothing(part: Selection, exponent: int) -> None:
    """Also one for each chunk."""
    values = np.ldexp(part.values.astype(np.float64), exponent * (1 - 2 * (part.chunks % 2)))
    louder = Selection(part.chunks, part.indices, values)  # float64, so that no factor overflows
    np.testing.assert_array_equal(normalize_values(louder), normalize_values(part))


def means_of(parts: Sequence[Selection]) -> NDArray[np.float64]:
    """Mean per slot in votes [total]."""
    total, count = np.zeros(LAYOUT.total), np.zeros(LAYOUT.total)
    for part in parts:
        slots = LAYOUT.slots(part.chunks, part.indices.astype(np.int64))
        total[slots] += normalize_values(part) / UNIT
        count[slots] += 1
    return np.asarray(total / np.maximum(count, 1))


def decoded(coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
    """The ordinary inverse transform [total]."""
    found = np.empty_like(coefficients)
    for group in LAYOUT.groups:
        own = slice(group.start, group.stop)
        blocks = as_blocks(torch.from_numpy(coefficients[own]).view(group.shape), group.width)
        inverse = decode(blocks.reshape(-1, group.height, group.width), dct_basis(group.height), dct_basis(group.width))
        found[own] = inverse.view(group.blocks).transpose(1, 2).reshape(-1).numpy()
    return found


def chunk_slots() -> list[NDArray[np.int64]]:
    """The flat positions of each chunk."""
    sizes = {int(chunk): entry.size for entry in LAYOUT.classes for chunk in entry.chunks}
    return [LAYOUT.slots(np.full(sizes[chunk], chunk), np.arange(sizes[chunk])) for chunk in sorted(sizes)]


@given(st.lists(st.integers(0, 2**32), min_size=1, max_size=6), sent())
@settings(max_examples=150, deadline=None)
def test_one_sender_changes_no_more_than_as_many_votes_could(seeds: list[int], lie: Selection) -> None:
    """With j values in a chunk, the mean there changes by an L2 norm of at most sqrt(j) and half of what the others have at these
    places, as with votes; and the weights whose direction changes had together no more than that.
    """
    honest = [honest_part(seed) for seed in seeds]
    aggregator = Aggregator(LAYOUT, CPU)
    before, after = aggregator.direction(honest, one_bit=False), aggregator.direction([*honest, lie], one_bit=False)
    means, changed = means_of(honest), means_of([*honest, lie])
    weights = decoded(means)
    lied = LAYOUT.slots(lie.chunks, lie.indices.astype(np.int64))
    for chunk, slots in enumerate(chunk_slots()):
        count = int((lie.chunks == chunk).sum())
        others = np.linalg.norm(means[np.intersect1d(slots, lied)])
        bound = math.sqrt(count) * 1.001 + others / 2
        assert np.linalg.norm((changed - means)[slots]) <= bound + 1e-9
        flipped = slots[(before != after).numpy()[slots]]
        rounded = ROUNDING * (np.linalg.norm(means[slots]) + np.linalg.norm(changed[slots]))
        assert np.linalg.norm(weights[flipped]) <= bound + rounded


def honest_part(seed: int) -> Selection:
    """Normal values at places that senders share in part, each sender with a size of its own."""
    random = np.random.default_rng(seed)
    chunks, indices = [], []
    for entry in LAYOUT.classes:
        for chunk in entry.chunks.tolist():
            count = int(random.integers(0, entry.topk + 1))
            chunks += [chunk] * count
            indices += sorted(random.permutation(min(entry.size, 2 * entry.topk))[:count].tolist())
    values = random.standard_normal(len(chunks)) * 10.0 ** random.uniform(-4, 2)
    return Selection(np.array(chunks, np.int64), np.array(indices, np.int64), values.astype(np.float32))


def as_large_as_the_format_allows(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.copysign(np.float32(codec.MAX_VALUE), -values)


def one_in_eight_as_large(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(np.arange(values.size) % 8 == 0, np.copysign(np.float32(codec.MAX_VALUE), -values), -values)


Lie = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@pytest.mark.parametrize("lie", [None, np.negative, as_large_as_the_format_allows, one_in_eight_as_large])
def test_one_liar_of_four_does_not_stop_training(lie: Lie | None) -> None:
    """Values with a liar end where signs with the same liar do, within a tenth of what was learned."""
    values, signs = (distance_left(lie, one_bit=one_bit) for one_bit in (False, True))
    assert values <= signs + 0.1 * (1 - signs)
    assert signs < 0.85


def distance_left(lie: Lie | None, *, one_bit: bool, rounds: int = 60, rate: float = 0.003) -> float:
    """Four members train towards one target and see it through noise; the last sends lies. The distance left, as a share."""
    shapes = {"w": (64, 96), "v": (64,)}
    table = DistroSettings(compression_topk=16, compression_chunk=32, quantize_1bit=one_bit)
    models = [ToyModel(shapes, seed=1) for _ in range(4)]
    members = [DistroOptimizer(table, model) for model in models]
    layout = build_layout(shapes, chunk=table.compression_chunk, topk=table.compression_topk)
    random = torch.Generator().manual_seed(2)
    target = {name: 0.1 * torch.randn(shape, generator=random) for name, shape in shapes.items()}

    def distance() -> float:
        return math.hypot(*(float(torch.linalg.vector_norm(members[0].masters[name] - target[name])) for name in shapes))

    start = distance()
    waiting: list[list[bytes]] = []
    for step in range(rounds + 2):
        for member in members if step >= 2 else ():
            member.apply(step - 2, waiting[step - 2], learning_rate=rate, own_accepted=True)
        if step >= rounds:
            continue

        payloads = []
        for model, member in zip(models, members, strict=True):
            member.load_lookahead(learning_rate=rate)
            for name, weights in model.parameters.items():
                weights.grad = weights.detach() - target[name] + 0.1 * torch.randn(shapes[name], generator=random)
            payloads.append(member.compress(step, learning_rate=rate))
        if lie is not None:
            honest = codec.decode(layout, payloads[-1], values=table.values)
            lies = codec.as_sent(lie(honest.values), table.values)
            payloads[-1] = codec.encode(layout, Selection(honest.chunks, honest.indices, lies), values=table.values)
        waiting.append(payloads)
    print(f"{lie} {one_bit=} {distance() / start:.3f}")
    return distance() / start


def test_values_travel_in_16_or_32_bits_to_the_same_bits() -> None:
    """What both can hold is applied alike."""
    masters = []
    for bits, form in ((16, ValueFormat.BFLOAT16), (32, ValueFormat.FLOAT32)):
        model = ToyModel({"w": (16, 24), "v": (9,)})
        table = DistroSettings(compression_chunk=8, compression_topk=6, value_bits=bits)
        optimizer = DistroOptimizer(table, model)
        parts = [honest_part(seed) for seed in range(5)]
        halves = [Selection(part.chunks, part.indices, codec.as_sent(part.values, ValueFormat.BFLOAT16)) for part in parts]
        payloads = [codec.encode(LAYOUT, part, values=form) for part in halves]
        optimizer.apply(1, payloads, learning_rate=0.1, own_accepted=False)
        masters.append({name: tensor.clone() for name, tensor in optimizer.masters.items()})
    assert all(torch.equal(masters[0][name], masters[1][name]) for name in masters[0])
