"""The second stage `orthogonal`: its formula in whole numbers, equal bits in any order of summation, and for which tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from psyche_core.testing.optimizer import digest
from psyche_core.testing.toy_model import ToyModel
from psyche_optim_distro.chunks.layout import build_layout
from psyche_optim_distro.direction.orthogonal import Orthogonal, orthogonal
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.settings import DistroSettings

Whole = NDArray[np.int64]


def shifted(values: Whole, bits: int) -> Whole:
    """Divide by a power of two, half to even. A negative number of bits multiplies."""
    if bits <= 0:
        return values << -bits
    quotient, rest, half = values >> bits, values & ((1 << bits) - 1), 1 << (bits - 1)
    rounded: Whole = quotient + ((rest > half) | ((rest == half) & (quotient & 1 == 1)))
    return rounded


def by_whole_numbers(chunk: Whole) -> NDArray[np.float32]:
    """The module's formula for one chunk of integers below 2^24, by int64 alone. An overflow would be seen by object integers."""
    largest = int(np.abs(chunk).max())
    if largest == 0:
        return np.zeros(chunk.shape, np.float32)
    x = shifted(chunk, largest.bit_length() - 13)
    squares = int((x.astype(object) ** 2).sum())
    x = shifted(x, -(-squares.bit_length() // 2) - 20)
    flip = x.shape[0] > x.shape[1]
    x = x.T if flip else x
    for _ in range(5):
        a = shifted(x @ x.T, 20)
        b = shifted(260 * (a @ a) - 611 * (a << 20), 27)
        x = shifted(128 * (b @ x) + 441 * (x << 20), 27)
        assert np.abs(x).max() < 1.25 * 2**20
    x = x.T if flip else x
    return np.asarray(x * (math.sqrt(max(x.shape)) / 2**20), np.float32)


def some_chunk(seed: int, height: int, width: int, *, fill: float, bits: int) -> Whole:
    """Integers below 2^bits, of which a part is not zero."""
    dice = np.random.default_rng(seed)
    values = dice.integers(-(2**bits) + 1, 2**bits, size=(height, width)) >> dice.integers(0, bits, size=(height, width))
    return np.asarray(values * (dice.random((height, width)) < fill), np.int64)


@given(
    seed=st.integers(0, 2**32),
    height=st.integers(1, 70),
    width=st.integers(1, 70),
    fill=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    bits=st.integers(1, 24),
    power=st.integers(-60, 60),
)
@settings(max_examples=60)
def test_it_is_the_formula_in_whole_numbers(seed: int, height: int, width: int, fill: float, bits: int, power: int) -> None:
    """A power of two of the chunk changes nothing, however large or small."""
    chunk = some_chunk(seed, height, width, fill=fill, bits=bits)
    expected = by_whole_numbers(chunk)
    for factor in (1.0, 2.0**power):
        given = torch.from_numpy(chunk * factor).to(torch.float32)
        assert orthogonal(given.unsqueeze(0))[0].numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "chunk",
    [
        np.ones((64, 64)),
        np.eye(64),
        np.outer(np.arange(64), np.arange(48)),
        np.diag(2.0 ** np.arange(0, -24, -1)),
        np.ones((1, 64)),
    ],
    ids=["equal", "orthogonal", "rank one", "ill conditioned", "a row"],
)
def test_extremes_are_the_formula_in_whole_numbers(chunk: NDArray[np.float64]) -> None:
    whole = np.asarray(chunk * (2**23 if chunk.max() <= 1 else 1), np.int64)
    found = orthogonal(torch.from_numpy(whole).to(torch.float32).unsqueeze(0))[0]
    assert found.numpy().tobytes() == by_whole_numbers(whole).tobytes()


def test_the_largest_chunk_keeps_below_what_the_proof_says() -> None:
    """Every element as large as can be, and signs at random: many sums are as long as they can be."""
    whole = np.random.default_rng(1).choice([-1, 1], size=(1024, 1024)) * (2**24 - 1)
    found = orthogonal(torch.from_numpy(whole).to(torch.float32).unsqueeze(0))[0]
    assert torch.linalg.matrix_norm(found / 32, 2) < 1.21


def test_no_bit_depends_on_the_order_of_summation_or_on_threads() -> None:
    generator = torch.Generator().manual_seed(3)
    chunks = torch.randn(40, 64, 48, generator=generator).mul(1e4).round()
    before, expected = torch.get_num_threads(), orthogonal(chunks)
    rows, columns = torch.randperm(64, generator=generator), torch.randperm(48, generator=generator)
    assert torch.equal(orthogonal(chunks[:, rows][:, :, columns]), expected[:, rows][:, :, columns])
    assert torch.equal(orthogonal(chunks.transpose(1, 2)), expected.transpose(1, 2))
    torch.set_num_threads(2)
    assert torch.equal(orthogonal(chunks), expected)
    torch.set_num_threads(before)


def test_a_direction_has_singular_values_near_one_and_the_size_of_signs() -> None:
    chunks = torch.randn(20, 64, 32, generator=torch.Generator().manual_seed(4)).mul(1e4).round()
    found = orthogonal(chunks)
    values = torch.linalg.svdvals(found / 8)
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.21
    assert 0.5 < float(found.square().mean().sqrt()) < 1.2
    left, _, right = torch.linalg.svd(chunks, full_matrices=False)
    alike = torch.nn.functional.cosine_similarity(found.flatten(1), (left @ right).flatten(1))
    assert float(alike.min()) > 0.97


@pytest.mark.parametrize("limit", [10**6, 1])
def test_only_matrices_are_made_orthogonal_and_tiles_do_not_matter(limit: int) -> None:
    layout = build_layout({"embed": (64, 32), "layers.0.weight": (96, 64), "norm": (40,)}, chunk=32, topk=4)
    stage = Orthogonal(layout, ["layers.0.weight"])
    update = torch.randn(layout.total, generator=torch.Generator().manual_seed(5)).mul(1e4).round()
    found = torch.cat(
        [stage.direction(update[tile.start : tile.stop].clone(), tile) for group in layout.groups for tile in group.tiles(limit)]
    )
    for entry in layout.parameters:
        own, before = (flat[entry.start : entry.stop].view(entry.shape) for flat in (found, update))
        if entry.name == "layers.0.weight":
            chunks = before.view(3, 32, 2, 32).transpose(1, 2).reshape(6, 32, 32)
            assert torch.equal(own, orthogonal(chunks).view(3, 2, 32, 32).transpose(1, 2).reshape(96, 64))
        else:
            assert torch.equal(own, before.sign())


def test_rates_may_name_what_is_a_matrix() -> None:
    """A tensor that `by_name` calls an embedding moves by signs."""
    moved: dict[str, Any] = {}
    for name, rates in (("matrix", None), ("embedding", {"by_name": [{"pattern": "a", "kind": "embedding"}]})):
        model = ToyModel({"a": (32, 16), "b": (32, 16)})
        given = {"compression_topk": 8, "quantize_1bit": True, "second_stage": "orthogonal", "rates": rates}
        optimizer = DistroOptimizer(DistroSettings.model_validate(given), model)
        before = {key: master.clone() for key, master in optimizer.masters.items()}
        for key, parameter in model.parameters.items():
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(key)))
        payload = optimizer.compress(1, learning_rate=0.25)
        optimizer.apply(1, [payload], learning_rate=0.25, own_accepted=True)
        moved[name] = {key: (before[key] - master) / 0.25 for key, master in optimizer.masters.items()}
    assert torch.equal(moved["matrix"]["b"], moved["embedding"]["b"])
    assert set(moved["embedding"]["a"].round(decimals=4).unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert len(moved["matrix"]["a"].unique()) > 100


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_bits_of_the_cpu() -> None:
    for shape in ((30, 64, 64), (7, 64, 43), (2, 512, 1024)):
        chunks = torch.randn(shape, generator=torch.Generator().manual_seed(6)).mul(1e5).round()
        assert torch.equal(orthogonal(chunks.cuda()).cpu(), orthogonal(chunks))


def test_replicas_stay_equal_to_the_bit_with_it() -> None:
    """Also one that has more threads."""
    shapes = {"layers.0.weight": (64, 48), "norm": (48,), "odd": (29, 6)}
    digests = set()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        model = ToyModel(shapes)
        given = {"compression_topk": 4, "quantize_1bit": True, "second_stage": "orthogonal", "weight_decay": 0.1}
        optimizer = DistroOptimizer(DistroSettings.model_validate(given), model)
        for step in range(1, 20):
            generator = torch.Generator().manual_seed(step)
            for parameter in model.parameters.values():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.apply(step, [optimizer.compress(step, learning_rate=0.01)], learning_rate=0.01, own_accepted=True)
        digests.add(digest(optimizer.masters))
    torch.set_num_threads(1)
    assert len(digests) == 1
