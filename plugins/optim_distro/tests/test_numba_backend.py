"""The compiled code: the plain code's bits, its opinion of hostile bytes, and nothing outside an array."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.errors import PayloadRejected
from psyche_core.testing.optimizer import Replica, digest, play_rounds
from psyche_core.testing.toy_model import ToyModel
from psyche_optim_distro.backends.choice import compressor_for, updater_for
from psyche_optim_distro.backends.numba import numba_available
from psyche_optim_distro.backends.torch import TorchVoteUpdater
from psyche_optim_distro.chunks.layout import Layout, build_layout
from psyche_optim_distro.chunks.precision import Precision
from psyche_optim_distro.chunks.rates import Rates
from psyche_optim_distro.chunks.tiles import Workspace
from psyche_optim_distro.chunks.transform import dct_basis
from psyche_optim_distro.direction.aggregation import mean_of_votes
from psyche_optim_distro.direction.clip import Clip
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.top_k import CoefficientTables, Selection
from psyche_optim_distro.settings import DistroSettings
from psyche_optim_distro.update import Updater
from psyche_optim_distro.value_format import ValueFormat

if numba_available():
    from psyche_optim_distro.backends.numba.update import NumbaUpdater, means_of_counts

pytestmark = pytest.mark.skipif(not numba_available(), reason="needs psyche-optim-distro[fast]")

CPU = torch.device("cpu")
ODD_SHAPES = {"w": (128, 192), "odd": (97, 30), "norm": (64,), "tall": (60, 7), "one": (1,), "stack": (2, 48, 40), "none": (0, 3)}


def updater(layout: Layout, *, compiled: bool, rates: Rates = MappingProxyType({}), clipped: bool = False) -> Updater[object]:
    workspace = Workspace(CPU)
    second_stage = Clip(workspace=workspace) if clipped else None
    return updater_for(
        layout, ValueFormat.SIGNS, CPU, workspace=workspace, compiled=compiled, rates=rates, second_stage=second_stage
    )


def payload(layout: Layout, generator: np.random.Generator, *, fill: float = 1.0) -> bytes:
    """A chunk sends all it may, or with a chance of 1 - fill fewer."""
    chunks, indices = [], []
    for entry in layout.classes:
        all_it_may = generator.random(len(entry.chunks)) < fill
        counts = np.where(all_it_may, entry.topk, generator.integers(0, entry.topk + 1, len(entry.chunks)))
        shuffled = np.argsort(generator.random((len(entry.chunks), entry.size)), axis=1)
        rows, places = np.nonzero(shuffled < counts[:, None])
        indices.append(places)
        chunks.append(entry.chunks[rows])
    values = np.where(generator.random(sum(part.size for part in indices)) < 0.5, -1, 1).astype(np.float32)
    selection = Selection(
        np.concatenate([np.zeros(0, np.int64), *chunks]), np.concatenate([np.zeros(0, np.int64), *indices]), values
    )
    return codec.encode(layout, selection, values=ValueFormat.SIGNS)


def moved(
    layout: Layout,
    payloads: Sequence[bytes],
    *,
    compiled: bool,
    weight_decay: float = 0.1,
    learning_rate: float = 1e-3,
    rates: Rates = MappingProxyType({}),
    clipped: bool = False,
) -> torch.Tensor:
    masters = torch.randn(layout.total, generator=torch.Generator().manual_seed(1))
    by = updater(layout, compiled=compiled, rates=rates, clipped=clipped)
    by.update(masters, [by.decode(each) for each in payloads], learning_rate=learning_rate, weight_decay=weight_decay)
    return masters


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.view(torch.int32), right.view(torch.int32))


def test_it_is_used_where_it_can_be() -> None:
    layout = build_layout({"w": (4, 4)}, chunk=4, topk=2)
    assert not isinstance(updater(layout, compiled=True), TorchVoteUpdater)
    assert isinstance(updater(layout, compiled=False), TorchVoteUpdater)


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("senders", [1, 2, 7, 32, 256])
def test_it_moves_masters_to_the_bits_of_the_plain_code(senders: int, clipped: bool) -> None:
    layout = build_layout(ODD_SHAPES, chunk=64, topk=8)
    generator = np.random.default_rng(senders)
    payloads = [payload(layout, generator, fill=number % 3 / 2) for number in range(senders)]
    found = [moved(layout, payloads, compiled=compiled, clipped=clipped) for compiled in (True, False)]
    assert same_bits(*found)


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize(
    ("chunk", "topk"), [(1, 1), (2, 2), (7, 3), (48, 40), (64, 65535), (100, 9), (192, 200), (256, 9), (1024, 64)]
)
def test_chunks_of_any_size(chunk: int, topk: int, clipped: bool) -> None:
    """Sides that are not a multiple of four, wider than what is worked on at once, and places beyond 16 bits."""
    shapes = {"a": (300, 200), "b": (3, 48, 80), "c": (77,), "d": (33, 1), "e": (1024, 1024)} if chunk > 2 else {"a": (30, 20)}
    layout = build_layout(shapes, chunk=chunk, topk=topk)
    payloads = [payload(layout, np.random.default_rng(seed)) for seed in range(3)]
    found = [moved(layout, payloads, compiled=compiled, clipped=clipped) for compiled in (True, False)]
    assert same_bits(*found)


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("senders", [1, 3, 40])
@pytest.mark.parametrize("shapes", [{}, {"a": (0,)}, {"a": (0, 5), "b": (3,)}])
def test_a_model_may_have_parameters_without_elements_or_none(
    shapes: dict[str, tuple[int, ...]], senders: int, clipped: bool
) -> None:
    layout = build_layout(shapes, chunk=16, topk=3)
    payloads = [payload(layout, np.random.default_rng(seed)) for seed in range(senders)]
    found = [moved(layout, payloads, compiled=compiled, clipped=clipped) for compiled in (True, False)]
    assert same_bits(*found)


@given(
    st.lists(st.lists(st.integers(1, 70), min_size=1, max_size=3), min_size=1, max_size=4),
    st.integers(1, 80),
    st.integers(1, 20),
    st.integers(1, 12),
    st.floats(0, 1),
    st.floats(1e-8, 1e3),
    st.integers(0, 2**32),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_any_table_is_moved_to_the_same_bits(
    shapes: list[list[int]], chunk: int, topk: int, senders: int, fill: float, rate: float, seed: int, clipped: bool
) -> None:
    layout = build_layout({f"p{number}": shape for number, shape in enumerate(shapes)}, chunk=chunk, topk=topk)
    generator = np.random.default_rng(seed)
    payloads = [payload(layout, generator, fill=fill) for _ in range(senders)]
    found = [
        moved(layout, payloads, compiled=compiled, weight_decay=1 / 7, learning_rate=rate, clipped=clipped)
        for compiled in (True, False)
    ]
    assert same_bits(*found)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_thousands_of_tables() -> None:
    """Sides from 1 to 1,024, up to 256 senders, rates over seven orders of magnitude; some minutes."""
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    dice = np.random.default_rng(seed)
    sides = [1, 2, 3, 4, 5, 7, 8, 12, 16, 30, 33, 48, 60, 64, 96, 97, 100, 128, 192, 200, 256, 320, 512, 768, 1000, 1024]
    tables = 0
    while tables < 5000:
        drawn = [tuple(dice.choice(sides, dice.integers(1, 4)).tolist()) for _ in range(dice.integers(1, 4))]
        shapes = {f"p{number}": shape for number, shape in enumerate(drawn) if math.prod(shape) <= 400_000}
        chunk, topk = int(dice.choice([8, 16, 64, 100, 128, 256, 1024])), int(dice.choice([1, 3, 8, 32, 200, 4000]))
        layout = build_layout(shapes, chunk=chunk, topk=topk)
        senders = int(dice.choice([1, 2, 3, 5, 8, 32, 100, 256] if layout.total < 50_000 else [1, 3, 8]))
        different = [payload(layout, dice, fill=float(dice.choice([0, 0.5, 1]))) for _ in range(min(senders, 12))]
        payloads = [different[number % len(different)] for number in range(senders)]
        torch.set_num_threads(int(dice.integers(1, 3)))
        rate = float(10 ** dice.uniform(-6, 1))
        clipped = bool(dice.integers(0, 2))
        found = [
            moved(layout, payloads, compiled=compiled, weight_decay=0.1, learning_rate=rate, clipped=clipped)
            for compiled in (True, False)
        ]
        assert same_bits(*found), (shapes, chunk, topk, senders)
        tables += 1


@pytest.mark.parametrize("shape", [(64, 1), (1, 64), (640, 1), (5, 1), (1024, 1), (1, 1024)])
def test_chunks_of_one_column_or_row(shape: tuple[int, int]) -> None:
    """Alone in their table, so that a mean of 1 is as large as an operand may be: no bit of it may be rounded away."""
    layout = build_layout({"w": shape}, chunk=1024 if 1024 in shape else 64, topk=200)
    for seed in range(20):
        payloads = [payload(layout, np.random.default_rng([seed, sender])) for sender in range(3)]
        assert same_bits(moved(layout, payloads, compiled=True), moved(layout, payloads, compiled=False))


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize(("chunk", "topk"), [(8, 30), (48, 1000), (100, 4000), (192, 20000)])
def test_chunks_with_votes_for_most_positions(chunk: int, topk: int, clipped: bool) -> None:
    """They are transformed as a whole, also if they are higher and wider than what is worked on at once."""
    shapes = {"square": (2 * chunk, chunk), "low": (3, chunk), "narrow": (chunk, 3), "vector": (2 * chunk,), "column": (chunk, 1)}
    layout = build_layout(shapes, chunk=chunk, topk=topk)
    payloads = [payload(layout, np.random.default_rng(seed), fill=0.7) for seed in range(3)]
    found = [moved(layout, payloads, compiled=compiled, clipped=clipped) for compiled in (True, False)]
    assert same_bits(*found)


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize(("chunk", "topk"), [(64, 1), (64, 8), (16, 40)])
@pytest.mark.parametrize(("senders", "others"), [(255, 0), (256, 0), (255, 1), (254, 2)])
def test_a_chunk_in_which_almost_all_agree(senders: int, others: int, chunk: int, topk: int, clipped: bool) -> None:
    """256 votes on one side are more than a byte can count; one vote on the other side changes the mean."""
    layout = build_layout({"w": (chunk, 3 * chunk), "norm": (chunk,)}, chunk=chunk, topk=topk)
    indices = np.concatenate([np.arange(entry.topk) for entry in layout.classes for _ in entry.chunks])
    chunks = np.concatenate([np.repeat(entry.chunks, entry.topk) for entry in layout.classes])
    signs = np.where(np.random.default_rng(1).random(chunks.size) < 0.5, -1, 1).astype(np.float32)
    one, other = (codec.encode(layout, Selection(chunks, indices, own), values=ValueFormat.SIGNS) for own in (signs, -signs))
    payloads = [one] * senders + [other] * others
    found = [moved(layout, payloads, compiled=compiled, clipped=clipped) for compiled in (True, False)]
    assert same_bits(*found)


def test_means_are_those_of_the_plain_code() -> None:
    """All numbers of votes that a byte for each side can hold."""
    for bits in (1, 8, 12):
        found, of_all = means_of_counts(bits), mean_of_votes(bits).float().numpy()
        for votes_for in range(256):
            against = np.arange(min(256, 257 - votes_for))
            wanted = of_all[(votes_for + against) * 1024 + votes_for - against]
            assert np.array_equal(found[votes_for + 256 * against], wanted)
        assert found[255] == of_all[256 * 1024 + 256]
        assert found[255 * 256] == of_all[256 * 1024 - 256]


@pytest.mark.parametrize("chunk", [16, 192])
def test_votes_that_another_process_decoded_count_as_much(chunk: int) -> None:
    layout = build_layout({"w": (192, 384), "norm": (48,)}, chunk=chunk, topk=5)
    payloads = [payload(layout, np.random.default_rng(seed), fill=0.7) for seed in range(3)]
    by, masters = NumbaUpdater(layout), torch.randn(layout.total, generator=torch.Generator().manual_seed(1))
    decoded = [by.decode(each) for each in payloads]
    mixed: list[Any] = [decoded[0], *(by.take(votes.as_coefficients()) for votes in decoded[1:])]
    by.update(masters, mixed, learning_rate=1e-3, weight_decay=0.1)
    assert same_bits(masters, moved(layout, payloads, compiled=False))


@pytest.mark.parametrize("senders", [1, 3])
def test_a_gap_longer_than_a_window_of_bits(senders: int) -> None:
    """Full chunks make the sender choose a Rice parameter of 0, so the gap of a chunk with one coefficient is 99 zero bits."""
    layout = build_layout({"w": (200, 10)}, chunk=10, topk=80)
    chunks, indices = np.repeat(np.arange(20), [1 if chunk == 3 else 80 for chunk in range(20)]), []
    for chunk in range(20):
        indices.append(np.array([99]) if chunk == 3 else np.arange(20, 100))
    signs = np.where(np.random.default_rng(1).random(chunks.size) < 0.5, -1, 1).astype(np.float32)
    one = codec.encode(layout, Selection(chunks, np.concatenate(indices), signs), values=ValueFormat.SIGNS)
    payloads = [one, *(payload(layout, np.random.default_rng(seed), fill=0.5) for seed in range(senders - 1))]
    assert same_bits(moved(layout, payloads, compiled=True), moved(layout, payloads, compiled=False))


def test_256_checked_payloads_are_kept_for_apply() -> None:
    """With 8 coefficients of each chunk of 64 by 64, so that none of them is read a second time to check it."""
    model = ToyModel({"w": (512, 512)}, seed=1)
    optimizer = DistroOptimizer(DistroSettings(compression_topk=8, quantize_1bit=True), model)
    one = payload(optimizer._layout, np.random.default_rng(1))
    payloads = [one[:-1] + bytes([signs]) for signs in range(256)]
    for each in payloads:
        optimizer.check(each)
    assert all(optimizer._vote_cache.pop(each) is not None for each in payloads)


def test_threads_and_order_do_not_matter() -> None:
    layout = build_layout({"w": (1024, 768), "wide": (64, 6400), "norm": (768,)}, chunk=64, topk=8)
    payloads = [payload(layout, np.random.default_rng(seed)) for seed in range(5)]
    expected = moved(layout, payloads, compiled=True)
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        assert same_bits(moved(layout, payloads[::-1], compiled=True), expected)


def test_zero_has_no_sign_and_no_weight_changes_for_it() -> None:
    """Two peers say the opposite: decay alone moves the weights, and -0.0 stays -0.0."""
    layout = build_layout({"w": (2, 2)}, chunk=2, topk=2)
    both = [
        codec.encode(
            layout, Selection(np.zeros(2, np.int64), np.array([0, 3]), np.array(signs, np.float32)), values=ValueFormat.SIGNS
        )
        for signs in ([1, -1], [-1, 1])
    ]
    masters = torch.tensor([-0.0, 0.0, 1.0, -1.0])
    by = updater(layout, compiled=True)
    by.update(masters, [by.decode(each) for each in both], learning_rate=0.1, weight_decay=5.0)
    assert same_bits(masters, torch.tensor([-0.0, 0.0, 0.5, -0.5]))


def test_more_than_256_payloads_are_refused() -> None:
    layout = build_layout({"w": (2, 2)}, chunk=2, topk=1)
    by = updater(layout, compiled=True)
    one = by.decode(payload(layout, np.random.default_rng(1)))
    with pytest.raises(ValueError, match="256"):
        by.update(torch.zeros(4), [one] * 257, learning_rate=1.0, weight_decay=0.0)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_hostile_payloads_are_refused_as_the_plain_code_refuses_them(data: st.DataObject) -> None:
    layout = build_layout({"embed": (20, 12), "norm": (12,), "stack": (2, 4, 6)}, chunk=6, topk=5)
    fill = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    changed = bytearray(payload(layout, np.random.default_rng(data.draw(st.integers(0, 99))), fill=fill))
    for _ in range(data.draw(st.integers(0, 4))):
        changed[data.draw(st.integers(22, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(changed[: data.draw(st.sampled_from([len(changed), len(changed) - 1, len(changed) // 2]))])
    said = []
    for compiled in (True, False):
        by = updater(layout, compiled=compiled)
        masters = torch.zeros(layout.total)
        try:
            by.update(masters, [by.decode(cut)], learning_rate=-1.0, weight_decay=0.0)
        except PayloadRejected as refused:
            said.append(str(refused))
        else:
            said.append(str(masters.tolist()))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "settings",
    [
        {"quantize_1bit": True},
        {"quantize_1bit": True, "weight_decay": 0.1, "clip_grad_norm": 1.0},
        {"value_bits": 16},
        {"value_bits": 32, "weight_decay": 0.1},
    ],
)
def test_replicas_with_and_without_it_stay_equal(settings: dict[str, Any]) -> None:
    models = [ToyModel({"w": (64, 96), "norm": (96,), "odd": (33, 10)}, seed=3) for _ in range(4)]
    replicas = [
        Replica(
            model,
            DistroOptimizer(DistroSettings(compression_topk=4, **settings), model, compiled=number % 2 == 0),
        )
        for number, model in enumerate(models)
    ]

    def equal() -> None:
        assert len({digest(replica.optimizer.masters) for replica in replicas}) == 1

    play_rounds(replicas, rounds=40, learning_rate=0.01, after_round=equal)


def deltas(layout: Layout) -> torch.Tensor:
    return torch.randn(layout.total, generator=torch.Generator().manual_seed(2))


def found(
    layout: Layout,
    gradients: Mapping[str, torch.Tensor],
    waiting: Sequence[CoefficientTables] = (),
    *,
    compiled: bool,
    scale: float = 0.5,
) -> tuple[torch.Tensor, CoefficientTables]:
    """Delta afterwards, and what is sent."""
    precision = None if compiled else Precision()
    by = compressor_for(layout, ValueFormat.SIGNS, CPU, workspace=Workspace(CPU), precision=precision, compiled=compiled)
    delta, tables = deltas(layout), CoefficientTables(layout, CPU, by.precision)
    by.compress(delta, gradients, waiting, tables, scale=scale, decay=0.9)
    return delta, tables


def random_gradients(layout: Layout, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {entry.name: torch.randn(math.prod(entry.shape), generator=generator) for entry in layout.parameters}


def close(ours: tuple[torch.Tensor, CoefficientTables], theirs: tuple[torch.Tensor, CoefficientTables]) -> None:
    """Equal but for float32's rounding: delta, and the sizes of what is sent, whichever of nearly equal ones that is."""
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
    for left, right in zip(ours[1].indices, theirs[1].indices, strict=True):
        assert (left.diff(dim=1) > 0).all()
        both = sum(len(set(one) & set(other)) for one, other in zip(left.tolist(), right.tolist(), strict=True))
        assert both >= 0.99 * left.numel()
    for left, right in zip(ours[1].values, theirs[1].values, strict=True):
        torch.testing.assert_close(left.abs().sort(dim=1).values, right.abs().sort(dim=1).values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("chunk", "topk"), [(1, 1), (2, 3), (7, 3), (48, 40), (64, 8), (64, 65535), (100, 9), (192, 200), (1024, 64)]
)
def test_what_is_found_is_what_torch_finds(chunk: int, topk: int) -> None:
    shapes = {"a": (300, 200), "b": (3, 48, 80), "c": (77,), "d": (33, 1), "e": (1024, 1024), "none": (0, 3)}
    layout = build_layout(shapes if chunk > 2 else {"a": (30, 20), "c": (7,)}, chunk=chunk, topk=topk)
    waiting = [found(layout, random_gradients(layout, seed), compiled=False)[1] for seed in (1, 2)]
    gradients = random_gradients(layout, 3)
    gradients.pop("c")
    close(found(layout, gradients, waiting, compiled=True), found(layout, gradients, waiting, compiled=False))


@given(
    st.lists(st.lists(st.integers(1, 70), min_size=1, max_size=3), min_size=1, max_size=4),
    st.integers(1, 80),
    st.integers(1, 20),
    st.integers(0, 2),
    st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_in_any_table(shapes: list[list[int]], chunk: int, topk: int, results: int, seed: int) -> None:
    layout = build_layout({f"p{number}": shape for number, shape in enumerate(shapes)}, chunk=chunk, topk=topk)
    waiting = [found(layout, random_gradients(layout, seed + 1 + number), compiled=False)[1] for number in range(results)]
    gradients = random_gradients(layout, seed)
    ours, theirs = (found(layout, gradients, waiting, compiled=compiled) for compiled in (True, False))
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
    for left, right in zip(ours[1].values, theirs[1].values, strict=True):
        torch.testing.assert_close(left.abs().sort(dim=1).values, right.abs().sort(dim=1).values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_gradients_of_any_kind(dtype: torch.dtype) -> None:
    layout = build_layout(ODD_SHAPES, chunk=64, topk=8)
    gradients = {name: gradient.to(dtype) for name, gradient in random_gradients(layout, 4).items()}
    gradients["norm"] = torch.randn(128, dtype=dtype)[::2]
    close(found(layout, gradients, compiled=True), found(layout, gradients, compiled=False))


def test_finding_in_threads_gives_the_same_bits() -> None:
    layout = build_layout({"w": (1024, 768), "wide": (64, 6400), "norm": (768,), "small": (5, 3)}, chunk=64, topk=8)
    gradients, waiting = random_gradients(layout, 5), [found(layout, random_gradients(layout, 6), compiled=True)[1]]
    expected = found(layout, gradients, waiting, compiled=True)
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        got = found(layout, gradients, waiting, compiled=True)
        assert same_bits(got[0], expected[0])
        for kind in ("indices", "values"):
            for left, right in zip(getattr(got[1], kind), getattr(expected[1], kind), strict=True):
                assert torch.equal(left, right)


def test_equal_coefficients_are_sent_up_to_the_limit() -> None:
    """A chunk of zeros, and one of 1 and -1 but for two larger ones, which are last: as many as may be sent, each once."""
    layout = build_layout({"w": (8, 16)}, chunk=8, topk=5)
    signs = torch.where(torch.arange(64).view(8, 8) % 3 == 0, -1.0, 1.0)
    signs[7, 6:] = torch.tensor([3.0, -2.0])
    blocks = torch.zeros(8, 16)
    blocks[:, 8:] = dct_basis(8).float() @ signs @ dct_basis(8).float().T
    by = compressor_for(layout, ValueFormat.SIGNS, CPU, workspace=Workspace(CPU), precision=None, compiled=True)
    delta, tables = torch.zeros(layout.total), CoefficientTables(layout, CPU, by.precision)
    by.compress(delta, {"w": blocks.reshape(-1)}, [], tables, scale=1.0, decay=0.5)
    indices, values = tables.indices[0], tables.values[0]
    assert values[0].tolist() == [0.0] * 5
    assert (indices[1].diff() > 0).all()
    assert indices[1][3:].tolist() == [62, 63]
    torch.testing.assert_close(values[1], signs.view(-1)[indices[1]])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 12, 48, 64, 97, 160, 1024])
def test_a_basis_taken_apart_is_the_basis(size: int) -> None:
    """Column by column, as a delta of one column whose coefficients are all sent."""
    layout = build_layout({"w": (size, 1)}, chunk=size, topk=size)
    column = torch.randn(size, generator=torch.Generator().manual_seed(size))
    by = compressor_for(layout, ValueFormat.SIGNS, CPU, workspace=Workspace(CPU), precision=None, compiled=True)
    delta, tables = torch.zeros(layout.total), CoefficientTables(layout, CPU, by.precision)
    by.compress(delta, {"w": column}, [], tables, scale=1.0, decay=0.5)
    assert tables.indices[0][0].tolist() == list(range(size))
    torch.testing.assert_close(tables.values[0][0].double(), column.double() @ dct_basis(size), rtol=1e-4, atol=1e-5)


WITHOUT_BOUNDS = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import test_numba_backend as tests
from psyche_core.errors import PayloadRejected
from psyche_optim_distro.chunks.layout import build_layout

for chunk, topk in ((1, 1), (6, 5), (7, 49), (64, 8), (100, 9)):
    layout = build_layout({**tests.ODD_SHAPES, "wide": (12, 1300)}, chunk=chunk, topk=topk)
    generator = np.random.default_rng(chunk)
    payloads = [tests.payload(layout, generator, fill=fill) for fill in (0.0, 0.5, 1.0)]
    tests.moved(layout, payloads, compiled=True)
    sent = tests.found(layout, tests.random_gradients(layout, 1), compiled=True)[1]
    tests.found(layout, tests.random_gradients(layout, 2), [sent, sent], compiled=True)
    by, refused = tests.updater(layout, compiled=True), 0
    for turn in range(400):
        hostile = bytearray(payloads[turn % 3])
        for place in generator.integers(22, len(hostile), 3):
            hostile[place] = generator.integers(256)
        try:
            by.update(tests.torch.zeros(layout.total), [by.decode(bytes(hostile))], learning_rate=1.0, weight_decay=0.0)
        except PayloadRejected:
            refused += 1
    print(chunk, refused)
    assert refused > 50
"""


@pytest.mark.soak
def test_nothing_outside_an_array_is_touched(tmp_path: Path) -> None:
    """With numba's own check of every index, which raises where the compiled code would read or write what is not its own."""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", WITHOUT_BOUNDS, str(Path(__file__).parent)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5


BETWEEN_FORBIDDEN_PAGES = """
import ctypes, mmap, sys
from dataclasses import replace
import numpy as np
sys.path.insert(0, sys.argv[1])
import test_numba_backend as tests
from psyche_optim_distro.backends.numba.decode_kernels import read_bits, read_lanes
from psyche_optim_distro.backends.numba.votes import VoteTable, check_votes, locate
from psyche_optim_distro.chunks.layout import build_layout

page, libc = mmap.PAGESIZE, ctypes.CDLL(None)

def read_all(located, entry, nothing):
    readers, found = located.readers(1)[0][0], []
    out = np.zeros(entry.topk + 64, np.uint16)
    for chunk in range(entry.chunks.size):
        read = read_lanes(readers.blocks, readers.payloads, readers.together, located.counts, chunk, entry.topk, nothing, out)
        read = read_bits(readers.others, located.counts, chunk, entry.topk, out, read)
        found.append(out[:read][out[:read] != nothing])
    return np.concatenate(found)

kinds = set()
for chunk, topk in ((16, 1), (16, 8), (16, 30), (10, 80)):
    layout = build_layout({"w": (4 * chunk, 5 * chunk)}, chunk=chunk, topk=topk)
    for seed in range(16):
        votes = check_votes(VoteTable(layout), tests.payload(layout, np.random.default_rng(seed), fill=seed % 3 / 2))
        size = len(votes.payload)
        inner = -(-size // page) * page
        memory = mmap.mmap(-1, inner + 2 * page)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for forbidden in (begin, begin + page + inner):
            assert libc.mprotect(ctypes.c_void_p(forbidden), page, 0) == 0  # no access
        located = locate([votes])
        kinds.add(located.readers(1)[0][0].payloads)
        for address in (begin + page, begin + page + inner - size):
            ctypes.memmove(address, votes.payload, size)
            there = replace(located, _first_bits=np.array([8 * address]), _last_words=np.array([(address + size - 1) // 8]))
            assert np.array_equal(read_all(there, layout.classes[0], 512), votes.places)
print(kinds)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
def test_nothing_beside_a_payload_is_touched() -> None:
    """Payloads are read where they lie.

    Here each lies at one end, then at the other, of memory beside which every access ends the process.
    """
    command = [sys.executable, "-c", BETWEEN_FORBIDDEN_PAGES, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stdout == "{0, 1}\n"


@pytest.mark.parametrize("how", ["sys.modules['numba'] = None", "import os; os.environ['NUMBA_DISABLE_JIT'] = '1'"])
def test_without_numba_the_plain_code_does_the_work(how: str) -> None:
    program = f"import sys; {how}; from psyche_optim_distro.backends.numba import numba_available; print(numba_available())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


@pytest.mark.soak
def test_compiling_ahead(tmp_path: Path) -> None:
    """The command compiles, and what it kept serves a second time; without numba it says what to install."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "psyche_optim_distro.backends.numba"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=110,
            check=True,
        )
        assert "are compiled for this processor" in done.stdout
        kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")}
        assert len([name for name in kept if name.startswith("compress_kernels.compress_group")]) == 1
        assert len([name for name in kept if name.startswith("update_kernels.update_group")]) == 2
    without = (
        "import sys; sys.modules['numba'] = None; from psyche_optim_distro.backends.numba.__main__ import main; sys.exit(main())"
    )
    failed = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, timeout=60, check=False)
    assert failed.returncode == 2
    assert "psyche-core[fast]" in failed.stderr
