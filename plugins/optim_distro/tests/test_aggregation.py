"""The integer decode: its bounds, its agreement with the exact one, and its indifference to order, threads and precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from psyche_core.testing.toy_model import TOY_SHAPES
from psyche_optim_distro.chunks.layout import Layout, build_layout
from psyche_optim_distro.chunks.tiles import tiles_of
from psyche_optim_distro.chunks.transform import as_blocks, dct_basis, decode
from psyche_optim_distro.direction import aggregation, integer_idct
from psyche_optim_distro.direction.aggregation import Aggregator
from psyche_optim_distro.direction.integer_idct import (
    BASIS_SCALE,
    EXACT_LIMIT,
    bfloat16_is_exact,
    integer_basis,
    operand_bits,
    rescale,
)
from psyche_optim_distro.direction.normalization import normalize_values
from psyche_optim_distro.payload.top_k import Selection
from psyche_optim_distro.settings import MAX_CHUNK

CPU = torch.device("cpu")
PRODUCTS = [torch.float32, torch.bfloat16]
"""What the inverse may be multiplied in; a CPU without instructions for bfloat16 gets the same bits, slowly."""


def one_chunk(indices: Sequence[int], values: Sequence[float]) -> Selection:
    return Selection(np.zeros(len(indices), np.int64), np.array(indices, np.int64), np.array(values, np.float32))


def random_votes(layout: Layout, senders: int, *, seed: int, one_bit: bool = True) -> list[Selection]:
    """Every sender sends its full top-k at uniform places; peers share about a third of their places."""
    generator = np.random.default_rng(seed)
    selections = []
    for _ in range(senders):
        chunks, indices = [], []
        for entry in layout.classes:
            for chunk in entry.chunks:
                common = np.random.default_rng(int(chunk)).permutation(entry.size)[: 2 * entry.topk]
                pool = np.unique(np.concatenate([common, generator.integers(0, entry.size, 4 * entry.topk)]))
                own = np.sort(generator.permutation(pool)[: entry.topk])
                indices.append(own)
                chunks.append(np.full(own.size, chunk))
        place = np.concatenate(indices)
        values = generator.standard_normal(place.size).astype(np.float32)
        selections.append(Selection(np.concatenate(chunks), place, np.sign(values) if one_bit else values))

    return selections


def mean_coefficients(layout: Layout, selections: Sequence[Selection], *, as_votes: bool = False) -> Tensor:
    """Per-slot mean over that slot's senders, float64 [total]. as_votes: of values with the root mean square 1 in each chunk."""
    total, count = np.zeros(layout.total), np.zeros(layout.total)
    for part in selections:
        slots = layout.slots(part.chunks, part.indices)
        total[slots] += in_votes(part) if as_votes else part.values
        count[slots] += 1
    return torch.from_numpy(total / np.maximum(count, 1))


def in_votes(part: Selection) -> NDArray[np.float64]:
    """Values by their root mean square in their chunk, in ordinary arithmetic."""
    values = part.values.astype(np.float64)
    squares, counts = np.bincount(part.chunks, values * values), np.bincount(part.chunks)
    return values / np.sqrt(squares[part.chunks] / counts[part.chunks])


def exact_decode(layout: Layout, coefficients: Tensor) -> Tensor:
    """The ordinary inverse DCT in float64."""
    decoded = torch.empty_like(coefficients)
    for group in layout.groups:
        own = slice(group.start, group.stop)
        blocks = as_blocks(coefficients[own].view(group.shape), group.width).reshape(-1, group.height, group.width)
        found = decode(blocks, dct_basis(group.height), dct_basis(group.width)).view(group.blocks)
        decoded[own] = found.transpose(1, 2).reshape(-1)
    return decoded


def int64_direction(layout: Layout, selections: Sequence[Selection], fixed_point: int) -> Tensor:
    """The same integers, one block at a time in int64 and Python's own arithmetic where the module uses matmuls of floats."""
    total, count = np.zeros(layout.total, np.int64), np.zeros(layout.total, np.int64)
    for part in selections:
        slots = layout.slots(part.chunks, part.indices)
        total[slots] += part.values.astype(np.int64)
        count[slots] += 1

    safe = np.maximum(count, 1)
    means = np.sign(total) * ((2 * fixed_point * np.abs(total) + safe) // (2 * safe))
    rounded = {mean: eight_bits(mean) for mean in np.unique(means).tolist()}
    return _int64_signs(layout, np.array([rounded[mean] for mean in means.tolist()]))


def int64_direction_of_values(layout: Layout, selections: Sequence[Selection], bits: int) -> Tensor:
    """The same of values, each mean in Python's integers."""
    amounts: dict[int, dict[int, list[int]]] = {}
    for part in selections:
        slots = layout.slots(part.chunks, part.indices).tolist()
        for chunk, slot, amount in zip(part.chunks.tolist(), slots, normalize_values(part).tolist(), strict=True):
            amounts.setdefault(chunk, {}).setdefault(slot, []).append(amount)
    coefficients = np.zeros(layout.total, np.int64)
    for slots_of_chunk in amounts.values():
        sums = {slot: (sum(all_), len(all_)) for slot, all_ in slots_of_chunk.items()}
        means = {
            slot: int(math.copysign((2 * abs(total) + count) // (2 * count), total)) for slot, (total, count) in sums.items()
        }
        shift = bits - max(1, *map(abs, means.values())).bit_length()
        for slot, mean in means.items():
            coefficients[slot] = eight_bits(round(Fraction(mean) * Fraction(2) ** shift))
    return _int64_signs(layout, coefficients)


def _rounded(total: int, count: int) -> int:
    """total / count, half away from zero."""
    return (1 if total > 0 else -1) * ((2 * abs(total) + count) // (2 * count))


def _int64_signs(layout: Layout, votes: NDArray[np.int64]) -> Tensor:
    """The signs of the inverse of integer coefficients [total]."""
    direction = torch.empty(layout.total)
    for group in layout.groups:
        natural = torch.from_numpy(votes[group.start : group.stop]).view(group.row_blocks, group.height, group.columns)
        out = direction[group.start : group.stop].view(natural.shape)
        for block_row in range(group.row_blocks):
            for left in range(0, group.columns, group.width):
                block = natural[block_row, :, left : left + group.width]
                out[block_row, :, left : left + group.width] = _int64_block(block)
    return direction


def eight_bits(number: int) -> int:
    """The nearest integer of eight significant bits, half to even."""
    spare = max(0, abs(number).bit_length() - 8)
    return round(number / (1 << spare)) << spare


def _int64_block(block: Tensor) -> Tensor:
    height, width = block.shape
    if width > 1:
        block = block @ integer_basis(width).T
        block = torch.tensor([eight_bits(value) for value in block.reshape(-1).tolist()]).view(height, width)
    if height > 1:
        if width > 1:
            peak = max(1, int(block.abs().max()))
            shift = operand_bits(height) - peak.bit_length()
            rounded = [round(value * 2.0**shift) for value in block.reshape(-1).tolist()]  # Python rounds half to even
            block = torch.tensor(rounded).view(height, width)
        block = integer_basis(height) @ block
    return block.sign().float()


LAYOUT = build_layout({"w": (128, 192), "odd": (97, 30), "norm": (64,), "tall": (60, 7), "one": (1,)}, chunk=64, topk=8)


def test_no_intermediate_can_pass_2_to_24() -> None:
    """The proof's premise for chunk sides up to the largest that settings allow: the worst row of Q times the largest operand."""
    for size in [*range(1, 161), *range(176, MAX_CHUNK + 1, 16), MAX_CHUNK - 1]:
        basis = integer_basis(size)
        assert int(basis.abs().max()) <= BASIS_SCALE
        assert (1 << operand_bits(size)) * int(basis.abs().sum(1).max()) <= EXACT_LIMIT
        assert 7 <= operand_bits(size) <= 11  # 11 bits are what TF32 keeps


def test_no_cosine_is_near_a_rounding_tie() -> None:
    """The integer basis must not depend on the last bits of a platform's cosine."""
    for size in range(1, MAX_CHUNK + 1):
        cosines = BASIS_SCALE * np.cos(np.pi * np.arange(4 * size) / (2 * size))
        assert np.abs(np.abs(cosines - np.floor(cosines)) - 0.5).min() > 1e-7


@pytest.mark.parametrize("size", [1, 2, 3, 48, 64, 97])
def test_integer_basis_is_the_rounded_basis(size: int) -> None:
    exact = dct_basis(size) * BASIS_SCALE * math.sqrt(size / 2)
    assert float((integer_basis(size) - exact).abs().max()) <= 0.5


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("senders", [1, 2, 3, 8, 255, 256])
def test_worst_case_votes_of_up_to_256_peers_are_exact(senders: int, products: torch.dtype) -> None:
    """All peers vote for the signs that make one output element as large as it can be; floats must equal int64."""
    layout = build_layout({"w": (64, 128)}, chunk=64, topk=4096)
    signs = torch.einsum("i,j->ij", integer_basis(64)[0].sign(), integer_basis(64)[0].sign()).reshape(-1).numpy()
    indices = np.tile(np.arange(4096), 2)
    chunks = np.repeat(np.arange(2), 4096)
    selection = Selection(chunks, indices, np.tile(signs, 2).astype(np.float32))
    aggregator = Aggregator(layout, CPU, products=products)
    got = aggregator.direction([selection] * senders, one_bit=True)
    assert torch.equal(got, int64_direction(layout, [selection], 1 << aggregator._bits))
    assert got[0] == 1


def test_more_than_256_payloads_are_refused() -> None:
    layout = build_layout({"w": (2, 2)}, chunk=2, topk=1)
    with pytest.raises(ValueError, match="256"):
        Aggregator(layout, CPU).direction([one_chunk([0], [1.0])] * 257, one_bit=True)


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("senders", [1, 3, 8, 32])
def test_float_paths_equal_int64_path(senders: int, products: torch.dtype) -> None:
    votes = random_votes(LAYOUT, senders, seed=senders)
    aggregator = Aggregator(LAYOUT, CPU, products=products)
    assert torch.equal(aggregator.direction(votes, one_bit=True), int64_direction(LAYOUT, votes, 1 << aggregator._bits))


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("senders", [1, 3, 8])
def test_values_equal_the_int64_path(senders: int, products: torch.dtype) -> None:
    parts = random_votes(LAYOUT, senders, seed=senders, one_bit=False)
    aggregator = Aggregator(LAYOUT, CPU, products=products)
    bits = aggregator._bits
    assert torch.equal(aggregator.direction(parts, one_bit=False), int64_direction_of_values(LAYOUT, parts, bits))


@pytest.mark.parametrize("one_bit", [True, False])
def test_threads_and_order_do_not_matter(one_bit: bool) -> None:
    layout = build_layout({"w": (1024, 768), "norm": (768,)}, chunk=64, topk=8)
    votes = random_votes(layout, 5, seed=4, one_bit=one_bit)
    expected = Aggregator(layout, CPU).direction(votes, one_bit=one_bit)
    torch.set_num_threads(2)
    assert torch.equal(Aggregator(layout, CPU).direction(votes, one_bit=one_bit), expected)
    assert torch.equal(Aggregator(layout, CPU).direction(votes[::-1], one_bit=one_bit), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("one_bit", [True, False])
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_cuda_gives_the_bits_of_the_cpu(one_bit: bool, precision: str) -> None:
    """With TF32, with bfloat16 and with neither."""
    layout = build_layout({"w": (1024, 768), "odd": (97, 30), "norm": (768,)}, chunk=64, topk=8)
    votes = random_votes(layout, 5, seed=4, one_bit=one_bit)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        got = Aggregator(layout, torch.device("cuda")).direction(votes, one_bit=one_bit)
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(got.cpu(), Aggregator(layout, CPU).direction(votes, one_bit=one_bit))


@pytest.mark.parametrize("one_bit", [True, False])
@pytest.mark.parametrize("precision", ["high", "medium"])
def test_a_lower_precision_of_float32_products_changes_no_bit(one_bit: bool, precision: str) -> None:
    """A program may allow TF32 or bfloat16 inside float32 products: all our operands fit into either."""
    layout = build_layout({"w": (1024, 768), "odd": (97, 30), "norm": (768,)}, chunk=64, topk=8)
    votes = random_votes(layout, 5, seed=4, one_bit=one_bit)
    expected = Aggregator(layout, CPU, products=torch.float32).direction(votes, one_bit=one_bit)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        got = Aggregator(layout, CPU, products=torch.float32).direction(votes, one_bit=one_bit)
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(got, expected)


def test_a_machine_whose_bfloat16_products_are_not_exact_multiplies_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that are rounded on their way would give this replica other bits than the rest."""

    def sloppy(left: Tensor, right: Tensor) -> Tensor:
        parts = [left[:, some] @ right[some] for some in torch.arange(left.shape[1]).split(2)]  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return sum(parts[1:], parts[0])

    assert bfloat16_is_exact(64)
    bfloat16_is_exact.cache_clear()
    monkeypatch.setattr(integer_idct, "cpu_has_bfloat16", lambda: True)
    assert Aggregator(LAYOUT, CPU)._inverse._products == torch.bfloat16
    bfloat16_is_exact.cache_clear()
    with monkeypatch.context() as changed:
        changed.setattr(torch, "mm", sloppy)
        assert Aggregator(LAYOUT, CPU)._inverse._products == torch.float32
    bfloat16_is_exact.cache_clear()


@pytest.mark.parametrize("one_bit", [True, False])
@pytest.mark.parametrize(
    ("chunk", "rows"),
    [(8, 128), (64, 128), (256, 256), *(pytest.param(chunk, 1024, marks=pytest.mark.soak) for chunk in (8, 64, 1024))],
)
@pytest.mark.timeout(600)
def test_bfloat16_products_give_the_bits_of_float32(one_bit: bool, chunk: int, rows: int) -> None:
    """Processors without such products take seconds for large ones."""
    layout = build_layout({"w": (rows, 2 * rows), "odd": (97, 30), "norm": (768,)}, chunk=chunk, topk=16)
    votes = random_votes(layout, 4, seed=11, one_bit=one_bit)
    found = [Aggregator(layout, CPU, products=products).direction(votes, one_bit=one_bit) for products in PRODUCTS]
    assert torch.equal(found[0], found[1])


def test_an_aggregator_keeps_nothing_from_one_call_to_the_next() -> None:
    aggregator = Aggregator(LAYOUT, CPU)
    first, second = random_votes(LAYOUT, 3, seed=1), random_votes(LAYOUT, 2, seed=2)
    expected = aggregator.direction(second, one_bit=True)
    aggregator.direction(first, one_bit=True)
    aggregator.direction(random_votes(LAYOUT, 2, seed=3, one_bit=False), one_bit=False)
    assert torch.equal(aggregator.direction(second, one_bit=True), expected)


@pytest.mark.parametrize("one_bit", [True, False])
@pytest.mark.parametrize("senders", [1, 3, 8, 32])
def test_signs_agree_with_the_exact_decode(senders: int, one_bit: bool) -> None:
    layout = build_layout({"w": (512, 512), "odd": (96, 50)}, chunk=64, topk=8)
    votes = random_votes(layout, senders, seed=9, one_bit=one_bit)
    exact = exact_decode(layout, mean_coefficients(layout, votes, as_votes=not one_bit))
    got = Aggregator(layout, CPU).direction(votes, one_bit=one_bit)
    agreement = float((got == exact.sign()).double().mean())
    print(f"agreement of signs, {senders} senders, one_bit={one_bit}: {agreement:.5f}")
    assert agreement >= 0.99


def test_aggregate_3_peers_2x2(vectors: dict[str, Any]) -> None:
    case = vectors["aggregate_3_peers_2x2"]
    layout = build_layout({"w": (2, 2)}, chunk=2, topk=2)
    aggregator = Aggregator(layout, CPU)
    indices = [peer[0][0] for peer in case["idx"]]
    values = [peer[0][0] for peer in case["val"]]
    for suffix, one_bit in (("", False), ("_1bit", True)):
        sent = [np.sign(value) if one_bit else value for value in values]
        selections = [one_chunk(*pair) for pair in zip(indices, sent, strict=True)]
        means = mean_coefficients(layout, selections)
        assert means.view(2, 2).tolist() == case["mean_coeffs" + suffix]
        torch.testing.assert_close(exact_decode(layout, means).view(2, 2), torch.tensor(case["decoded" + suffix]).double())
        got = aggregator.direction(selections, one_bit=one_bit)
        assert got.view(2, 2).tolist() == case["update_direction_sign" + suffix]


def test_aggregate_tie_1bit(vectors: dict[str, Any]) -> None:
    """Two peers with opposite signs: mean 0, no move."""
    layout = build_layout({"w": (2, 2)}, chunk=2, topk=2)
    got = Aggregator(layout, CPU).direction([one_chunk([0, 3], [1, -1]), one_chunk([0, 3], [-1, 1])], one_bit=True)
    assert got.view(2, 2).tolist() == vectors["aggregate_tie_1bit"]["direction"]


def test_one_huge_value_does_not_decide_for_everybody() -> None:
    """Values count by their root mean square (client.md 9.2, number 12: the reference averages them unclipped)."""
    layout = build_layout({"w": (4,)}, chunk=1, topk=1)
    honest = [Selection(np.arange(4), np.zeros(4, np.int64), np.full(4, 1.0, np.float32)) for _ in range(10)]
    liar = Selection(np.arange(4), np.zeros(4, np.int64), np.full(4, -60000.0, np.float32))
    assert Aggregator(layout, CPU).direction([*honest, liar], one_bit=False).tolist() == [1.0] * 4


def test_rescale_uses_the_whole_range_and_rounds_half_to_even() -> None:
    stage = torch.tensor([[3008.0, 5.0, 1.0, 2.0], [1.0, -3.0, 0.0, -2.0]], dtype=torch.bfloat16).unsqueeze(0)
    found, exponents = rescale(stage, width=2, bits=11)
    assert exponents.tolist() == [[1, -9]]
    assert found[0].tolist() == [[1504.0, 2.0, 512.0, 1024.0], [0.0, -2.0, 0.0, -1024.0]]


# -------------------------------------------------------------------------------------------------------- decoded values


VALUE_SHAPES = {**TOY_SHAPES, "tall": (128, 1), "wide": (3, 64), "large": (192, 128), "none": (0, 3)}


def decoded(aggregator: Aggregator, total: int, votes: list[Any]) -> torch.Tensor:
    whole = torch.full((total,), float("nan"))
    for tile, values in aggregator.vote_directions([aggregator.votes(each) for each in votes], signs=False):
        whole[tile.start : tile.stop] = values
    return whole


@pytest.mark.parametrize("senders", [1, 3, 32])
def test_decoded_values_are_those_of_the_ordinary_transform(senders: int) -> None:
    """Within a hundredth, and a factor for each parameter."""
    layout = build_layout(VALUE_SHAPES, chunk=16, topk=6)
    votes = random_votes(layout, senders, seed=senders)
    found = decoded(Aggregator(layout, CPU), layout.total, votes).double()
    exact = exact_decode(layout, mean_coefficients(layout, votes))
    for entry in layout.parameters:
        if not math.prod(entry.shape):
            continue
        ours, theirs = found[entry.start : entry.stop], exact[entry.start : entry.stop]
        factor = float(ours @ theirs / (theirs @ theirs))
        assert 0.1 < factor < 2 * math.sqrt(256), entry
        assert float((ours - factor * theirs).norm() / ours.norm()) < 0.012, entry


def test_values_have_the_signs_of_the_first_way() -> None:
    layout = build_layout(VALUE_SHAPES, chunk=16, topk=6)
    votes, aggregator = random_votes(layout, 5, seed=0), Aggregator(layout, CPU)
    assert torch.equal(torch.sign(decoded(aggregator, layout.total, votes)), aggregator.direction(votes, one_bit=True))


def test_values_do_not_depend_on_products_tiles_threads_or_order(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = build_layout(VALUE_SHAPES, chunk=16, topk=6)
    votes = random_votes(layout, 7, seed=1)
    expected = decoded(Aggregator(layout, CPU, products=torch.float32), layout.total, votes)
    assert torch.equal(decoded(Aggregator(layout, CPU, products=torch.bfloat16), layout.total, votes), expected)
    assert torch.equal(decoded(Aggregator(layout, CPU), layout.total, votes[::-1]), expected)
    before = torch.get_num_threads()
    torch.set_num_threads(1 if before > 1 else 2)
    assert torch.equal(decoded(Aggregator(layout, CPU), layout.total, votes), expected)
    torch.set_num_threads(before)
    monkeypatch.setattr(aggregation, "tiles_of", partial(tiles_of, elements=700))
    cut = Aggregator(layout, CPU)
    assert len(cut._tiles) > 20
    assert torch.equal(decoded(cut, layout.total, votes), expected)
