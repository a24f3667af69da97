"""A step of SparseLoCo by its formulas: local weights, error feedback, the outer step, replicas, and what one sender may do."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from psyche_core.errors import ModelError, PayloadRejected
from psyche_core.testing.optimizer import digest
from psyche_core.testing.toy_model import ToyModel, toy_samples
from psyche_core.types import MAX_CLIENTS
from psyche_optim_sparseloco import codec
from psyche_optim_sparseloco.inner_adamw import _norm
from psyche_optim_sparseloco.layout import build_layout
from psyche_optim_sparseloco.mean import means
from psyche_optim_sparseloco.optimizer import SparseLoCo
from psyche_optim_sparseloco.quantizer import LARGEST_CODE, UNIT, Quantized
from psyche_optim_sparseloco.settings import SparseLoCoSettings

RATE = 0.01
SHAPES = {"lm_head": (6, 40), "norm": (30,)}


def member(shapes: dict[str, tuple[int, ...]] | None = None, **given: Any) -> tuple[ToyModel, SparseLoCo]:
    model = ToyModel(shapes or SHAPES)
    return model, SparseLoCo(SparseLoCoSettings.model_validate({"topk": 4, "chunk_size": 32, "inner_steps": 3, **given}), model)


def share(model: ToyModel, optimizer: SparseLoCo, step: int, *, first: int = 0) -> bytes:
    """Train a share of as many parts as the optimizer takes inner steps."""
    optimizer.load_lookahead(learning_rate=RATE)
    for part in range(optimizer.inner_steps):
        if part:
            optimizer.inner_step(learning_rate=RATE)
        model.gradients(toy_samples(first + part), micro_batch_size=1)
    return optimizer.compress(step, learning_rate=RATE)


def copies(tensors: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def updates(optimizer: SparseLoCo, payload: bytes) -> dict[str, Tensor]:
    """What a payload says, in units of the learning rate, by parameter."""
    layout = build_layout({name: tuple(master.shape) for name, master in optimizer.masters.items()}, optimizer._settings)
    update = codec.decode(layout, payload)
    flat = torch.zeros(layout.total)
    flat[torch.from_numpy(update.positions)] = torch.from_numpy(update.amounts).float() * (optimizer._settings.limit / UNIT)
    return {each.name: flat[each.start : each.stop].view(each.shape) for each in layout.parameters}


def test_local_weights_are_those_of_torch_s_adamw() -> None:
    """Three inner steps, the third of which is in `compress`: the drift is what AdamW without weight decay would have done."""
    model, optimizer = member()
    twin = ToyModel(SHAPES)
    reference = torch.optim.AdamW(list(twin.parameters.values()), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    start = copies(optimizer.masters)
    optimizer.load_lookahead(learning_rate=RATE)
    for part in range(3):
        for each in (model, twin):
            each.gradients(toy_samples(part), micro_batch_size=1)
        reference.step()
        if part < 2:
            optimizer.inner_step(learning_rate=RATE)
            for name, weights in model.parameters.items():
                torch.testing.assert_close(weights.detach(), twin.parameters[name].detach(), rtol=1e-5, atol=1e-7)
    sent = updates(optimizer, optimizer.compress(1, learning_rate=RATE))
    for name, error in optimizer.momentum.items():
        moved = (start[name] - twin.parameters[name].detach()) / RATE
        torch.testing.assert_close(error + sent[name], moved, rtol=1e-4, atol=1e-4)


def test_the_norm_of_a_large_gradient_is_that_of_all_its_values() -> None:
    """float32 alone stops adding when a sum is large: ones have half of their norm then."""
    ones = torch.ones(1).expand(40_000_001)
    assert _norm(ones) == pytest.approx(math.sqrt(40_000_001), rel=1e-6)
    assert _norm(torch.full((9_000,), 1e25)) == pytest.approx(1e25 * math.sqrt(9_000), rel=1e-6)
    assert math.isnan(_norm(torch.tensor([1.0, math.nan])))


def test_a_gradient_is_as_it_was_after_a_step() -> None:
    """One under two names was scaled twice."""
    model, optimizer = member(clip_grad_norm=0.1)
    model.gradients(toy_samples(0), micro_batch_size=1)
    before = {name: parameter.grad.clone() for name, parameter in model.parameters.items() if parameter.grad is not None}
    assert len(before) == len(SHAPES)
    optimizer.load_lookahead(learning_rate=RATE)
    optimizer.inner_step(learning_rate=RATE)
    optimizer.compress(1, learning_rate=RATE)
    for name, gradient in before.items():
        now = model.parameters[name].grad
        assert now is not None
        assert torch.equal(now, gradient)


@pytest.mark.parametrize(("name", "value"), [("steps", -1.0), ("second.norm", -1e-3)])
def test_a_saved_state_with_impossible_values_is_refused(name: str, value: float) -> None:
    model, optimizer = member()
    share(model, optimizer, 1)
    state = copies(optimizer.private_state())
    state[name].flatten()[0] = value
    before = copies(optimizer.private_state())
    with pytest.raises(ModelError, match=f"{name} of an optimizer's state holds values below zero"):
        optimizer.load_private_state(state)
    assert all(torch.equal(tensor, before[each]) for each, tensor in optimizer.private_state().items())


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("kind", ["every second", "column", "one for all", "transposed", "bfloat16"])
def test_a_gradient_may_lie_in_memory_in_any_way(kind: str, clip: float | None) -> None:
    """torch's fused AdamW reads a gradient as if its values lay one after another, past its memory's end if need be."""
    rng = torch.Generator().manual_seed(5)
    gradients = {
        "every second": torch.randn(60, generator=rng)[::2],
        "column": torch.randn((30, 3), generator=rng)[:, 1],
        "one for all": torch.randn(1, generator=rng).expand(30),
        "bfloat16": torch.randn(30, generator=rng).to(torch.bfloat16),
        "transposed": torch.randn((40, 6), generator=rng).T,
    }
    name, gradient = ("lm_head" if kind == "transposed" else "norm"), gradients[kind]
    found = []
    for given in (gradient, gradient.to(torch.float32).clone(memory_format=torch.contiguous_format)):
        model, optimizer = member(clip_grad_norm=clip)
        optimizer.load_lookahead(learning_rate=RATE)
        if kind == "bfloat16":
            model.parameters[name].data = model.parameters[name].data.to(given.dtype)
        model.parameters[name].grad = given
        optimizer.inner_step(learning_rate=RATE)
        found.append(optimizer._inner.first.clone())
    assert torch.equal(found[0], found[1])
    assert bool(found[0].any())


@pytest.mark.parametrize("kind", ["bfloat16", "not contiguous"])
def test_local_weights_of_other_kinds_are_rounded_once(kind: str) -> None:
    """Results that are not applied are subtracted before the weights are rounded, and weights may lie in any order."""
    model, optimizer = member(outer_rate=0.5)
    told = updates(optimizer, share(model, optimizer, 1))
    weights = model.parameters["lm_head"]
    weights.data = weights.data.to(torch.bfloat16) if kind == "bfloat16" else weights.data.T.contiguous().T
    optimizer.load_lookahead(learning_rate=RATE)
    wanted = optimizer.masters["lm_head"] - told["lm_head"] * (RATE * 0.5)
    assert weights.is_contiguous() == (kind == "bfloat16")
    torch.testing.assert_close(weights.detach(), wanted.to(weights.dtype), rtol=0, atol=1e-9)


def test_what_is_not_sent_stays_and_fades() -> None:
    """error <- decay * error + drift - sent, over three steps, where the drift is measured at the local weights."""
    model, optimizer = member(error_decay=0.5)
    for step in (1, 2, 3):
        before = copies(optimizer.momentum)
        optimizer.load_lookahead(learning_rate=RATE)
        begin = copies(model.parameters)
        for part in range(2):
            model.gradients(toy_samples(10 * step + part), micro_batch_size=1)
            optimizer.inner_step(learning_rate=RATE)
        model.gradients(toy_samples(10 * step + 2), micro_batch_size=1)
        inner = optimizer._inner
        drift_before_last = {name: (begin[name] - model.parameters[name].detach()) / RATE for name in begin}
        first, second, count = inner.first.clone(), inner.second.clone(), inner.steps
        sent = updates(optimizer, optimizer.compress(step, learning_rate=RATE))
        for entry in optimizer._layout.parameters:
            gradient = model.parameters[entry.name].grad
            assert gradient is not None
            own = slice(entry.start, entry.stop)
            mean = (0.9 * first[own] + 0.1 * gradient.flatten()) / (1 - 0.9 ** (count + 1))
            square = (0.95 * second[own] + 0.05 * gradient.flatten() ** 2) / (1 - 0.95 ** (count + 1))
            drift = drift_before_last[entry.name] + (mean / (square.sqrt() + 1e-8)).view(entry.shape)
            wanted = 0.5 * before[entry.name] + drift - sent[entry.name]
            torch.testing.assert_close(optimizer.momentum[entry.name], wanted, rtol=1e-3, atol=1e-3)


def test_the_largest_of_each_chunk_are_sent() -> None:
    model, optimizer = member(inner_steps=1, topk=4)
    sent = updates(optimizer, share(model, optimizer, 1))
    for name, error in optimizer.momentum.items():
        whole, got = (error + sent[name]).flatten(), sent[name].flatten()
        for first in range(0, whole.numel(), 32):
            chunk, own = whole[first : first + 32].abs(), got[first : first + 32] != 0
            assert int(own.sum()) == 4
            assert bool(chunk[own].min() >= chunk[~own].max() - 1e-6)


def test_the_outer_step_moves_each_weight_by_the_mean_of_what_was_sent_for_it() -> None:
    _, optimizer = member(weight_decay=0.1, outer_rate=0.5, rates={"head": 2.0})
    payloads = []
    for number in range(3):
        sender = member(weight_decay=0.1, outer_rate=0.5, rates={"head": 2.0})
        payloads.append(share(*sender, 1, first=10 * number))
    before = copies(optimizer.masters)
    optimizer.apply(1, payloads, learning_rate=RATE, own_accepted=False)
    told = [updates(optimizer, payload) for payload in payloads]
    for name, master in optimizer.masters.items():
        every = torch.stack([each[name] for each in told])
        mean = every.sum(dim=0) / (every != 0).sum(dim=0).clamp(min=1)
        factor = 2.0 if name == "lm_head" else 1.0
        wanted = before[name] * (1 - RATE * 3 * 0.1) - RATE * factor * 0.5 * mean
        torch.testing.assert_close(master, wanted, rtol=1e-5, atol=RATE * optimizer._settings.limit / UNIT)


def test_a_share_begins_at_masters_moved_by_own_results_that_are_not_applied() -> None:
    model, optimizer = member(outer_rate=0.5)
    payload = share(model, optimizer, 1)
    told = updates(optimizer, payload)
    optimizer.load_lookahead(learning_rate=RATE)
    for name, master in optimizer.masters.items():
        torch.testing.assert_close(model.parameters[name].detach(), master - RATE * 0.5 * told[name], rtol=1e-5, atol=1e-8)
    optimizer.apply(1, [payload], learning_rate=RATE, own_accepted=True)
    optimizer.load_lookahead(learning_rate=RATE)
    assert digest(model.parameters) == digest(optimizer.masters)


def test_a_result_that_was_not_accepted_comes_back_as_if_it_had_stayed() -> None:
    """One that is never sent (its step was skipped), too."""
    taken, refused, skipped = (member(error_decay=0.5) for _ in range(3))
    for model, optimizer in (taken, refused, skipped):
        first = share(model, optimizer, 1)
        share(model, optimizer, 2, first=5)
        accepted = optimizer is taken[1]
        optimizer.apply(2 if optimizer is skipped[1] else 1, [first], learning_rate=RATE, own_accepted=accepted)
    told = updates(taken[1], first)
    for name, error in taken[1].momentum.items():
        torch.testing.assert_close(refused[1].momentum[name], error + 0.5 * told[name], rtol=1e-5, atol=1e-5)
    assert digest(skipped[1].momentum) != digest(refused[1].momentum), "its second result came back, too"


def test_two_replicas_are_equal_to_the_bit_and_to_whole_numbers() -> None:
    """40 overlapped rounds in two orders; the last outer step is worked out in numpy, with one rounding per operation."""
    members = [member(weight_decay=0.1, rates={"head": 3.0}) for _ in range(2)]
    payloads: dict[int, list[bytes]] = {}
    for step in range(1, 41):
        for number, (_, optimizer) in enumerate(members):
            if step > 2:
                order = payloads[step - 2][:: 1 - 2 * number]
                optimizer.apply(step - 2, order, learning_rate=RATE, own_accepted=True)
        assert digest(members[0][1].masters) == digest(members[1][1].masters)
        payloads[step] = [share(*each, step, first=100 * step + 10 * number) for number, each in enumerate(members)]

    optimizer = members[0][1]
    before = copies(optimizer.masters)
    optimizer.apply(39, payloads[39], learning_rate=RATE, own_accepted=True)
    layout, settings = optimizer._layout, optimizer._settings
    sent: list[list[int]] = [[] for _ in range(layout.total)]
    for payload in payloads[39]:
        update = codec.decode(layout, payload)
        for place, amount in zip(update.positions.tolist(), update.amounts.tolist(), strict=True):
            sent[place].append(amount)
    means = np.array([_mean(amounts) for amounts in sent], dtype=np.float32)
    assert {len(amounts) for amounts in sent} == {0, 1, 2}
    for entry in layout.parameters:
        factor = 3.0 if entry.name == "lm_head" else 1.0
        size = np.float32(RATE * factor * (settings.limit / UNIT))
        kept = np.float32(1 - RATE * (3 * 0.1))
        moved = means[entry.start : entry.stop] * size
        wanted = before[entry.name].numpy().ravel() * kept - moved
        assert optimizer.masters[entry.name].numpy().ravel().tobytes() == wanted.tobytes()


def _mean(amounts: list[int]) -> int:
    """In whole units, half away from zero, by Python's own integers."""
    if not amounts:
        return 0
    total, count = sum(amounts), len(amounts)
    size = (2 * abs(total) + count) // (2 * count)
    return size if total >= 0 else -size


@pytest.mark.parametrize(
    ("amounts", "mean"),
    [([17, 16], 17), ([-17, -16], -17), ([16, 16, 17], 16), ([16, 17, 17], 17), ([20, -20], 0), ([UNIT] * MAX_CLIENTS, UNIT)],
)
def test_means_are_whole_numbers_rounded_half_away_from_zero(amounts: list[int], mean: int) -> None:
    layout = build_layout({"weights": (10,)}, SparseLoCoSettings())
    sent = [codec.Update(np.array([7], dtype=np.int64), np.array([amount], dtype=np.int32)) for amount in amounts]
    last = codec.Update(np.array([9], dtype=np.int64), np.array([-30], dtype=np.int32))
    ((_, places, values),) = means([*sent, last], layout, torch.device("cpu"))
    assert dict(zip(places.tolist(), values.tolist(), strict=True)) == {7: mean, 9: -30}
    assert len(places) == 2
    assert mean == _mean(amounts)


@pytest.mark.parametrize("senders", [0, 1, 5])
def test_means_of_a_model_of_several_blocks(senders: int) -> None:
    """A parameter longer than a block, short ones beside it, an empty one, and blocks for which nothing was sent."""
    layout = build_layout({"a": (3,), "b": (600_000,), "c": (0,), "d": (2, 4)}, SparseLoCoSettings())
    rng = np.random.default_rng(senders)
    kept = np.r_[0:5, 250_000:270_000:7, 599_990 : layout.total]
    sent = []
    for _ in range(senders):
        positions = np.sort(rng.choice(kept, kept.size // 2, replace=False))
        sent.append(codec.Update(positions, rng.integers(-UNIT, UNIT + 1, positions.size).astype(np.int32)))
    wanted: dict[int, list[int]] = {}
    for update in sent:
        for place, amount in zip(update.positions.tolist(), update.amounts.tolist(), strict=True):
            wanted.setdefault(place, []).append(amount)
    got: dict[int, float] = {}
    for entry, places, values in means(sent, layout, torch.device("cpu")):
        assert bool((places >= 0).all())
        assert bool((places < entry.stop - entry.start).all())
        for place, value in zip((places + entry.start).tolist(), values.tolist(), strict=True):
            assert place not in got
            got[place] = value
    assert got == {place: _mean(amounts) for place, amounts in wanted.items()}


def test_no_result_moves_a_weight_further_than_its_inner_steps_could() -> None:
    """The largest values that the format has, from the most senders there may be."""
    _, optimizer = member(inner_steps=3)
    layout = optimizer._layout
    count = int(layout.quotas.sum())
    positions = np.concatenate([np.arange(quota) + start for start, quota in zip(layout.starts, layout.quotas, strict=True)])
    codes = np.full((layout.quotas.size, 2), LARGEST_CODE, dtype=np.uint8)
    huge = codec.encode(layout, positions, layout.quotas, Quantized(codes, np.ones(count, np.bool_), np.ones(count, np.bool_)))
    optimizer.check(huge)
    before = copies(optimizer.masters)
    optimizer.apply(1, [huge] * MAX_CLIENTS, learning_rate=RATE, own_accepted=False)
    furthest = max(float((master - before[name]).abs().max()) for name, master in optimizer.masters.items())
    bound = 0.1 / math.sqrt(0.05 * (1 - 0.81 / 0.95))
    assert furthest == pytest.approx(3 * bound * RATE, rel=1e-4)
    with pytest.raises(ValueError, match="at most 256 payloads"):
        optimizer.apply(2, [huge] * (MAX_CLIENTS + 1), learning_rate=RATE, own_accepted=False)


def test_a_bad_payload_among_good_ones_changes_nothing() -> None:
    model, optimizer = member()
    payload = share(model, optimizer, 1)
    before = digest(optimizer.masters), digest(optimizer.momentum)
    with pytest.raises(PayloadRejected):
        optimizer.apply(1, [payload, payload[:-1]], learning_rate=RATE, own_accepted=True)
    assert (digest(optimizer.masters), digest(optimizer.momentum)) == before


def test_a_step_is_compressed_once() -> None:
    model, optimizer = member()
    share(model, optimizer, 1)
    with pytest.raises(ValueError, match="step 1 was compressed already"):
        share(model, optimizer, 1)


def test_weights_in_bfloat16_lose_no_small_steps() -> None:
    """Local weights are kept in float32; the compute weights are their casts."""
    model = ToyModel(SHAPES, dtype=torch.bfloat16)
    optimizer = SparseLoCo(SparseLoCoSettings(topk=4, chunk_size=32, inner_steps=200), model)
    optimizer.load_lookahead(learning_rate=1e-5)
    for _ in range(150):
        model.fill_gradients(1.0)
        optimizer.inner_step(learning_rate=1e-5)
    for name, weights in model.parameters.items():
        wanted = (optimizer.masters[name] - 150 * 1e-5).to(torch.bfloat16)
        torch.testing.assert_close(weights.detach(), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"topk": 65, "chunk_size": 64}, "topk = 65 is more than the 64 elements of a chunk"),
        ({"betas": (0.99, 0.95)}, "betas[0]² must be below betas[1]"),
        ({"inner_steps": 0}, "greater than or equal to 1"),
        ({"outer_rate": float("nan")}, "finite number"),
        ({"compression_topk": 4}, "Extra inputs are not permitted"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        SparseLoCoSettings.model_validate(given)


def test_a_share_that_was_broken_off_is_in_no_payload() -> None:
    """Equal gradients make steps of 1: of three inner steps only the one after the new beginning is sent or kept."""
    model, optimizer = member()
    for _ in range(2):
        optimizer.load_lookahead(learning_rate=RATE)
        model.fill_gradients(1.0)
        optimizer.inner_step(learning_rate=RATE)
    optimizer.load_lookahead(learning_rate=RATE)
    model.fill_gradients(1.0)
    sent = updates(optimizer, optimizer.compress(1, learning_rate=RATE))
    for name, error in optimizer.momentum.items():
        torch.testing.assert_close(error + sent[name], torch.ones_like(error), rtol=1e-5, atol=1e-5)
