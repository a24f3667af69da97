"""What a verifier is shown follows from what the optimizer did: contribution, payload and positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from psyche_core.testing.toy_model import ToyModel
from psyche_core.verification.overlap import jaccard
from psyche_core.verification.replay import Rule, chunk_scores, claimed, mean_score, payload_agreement
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.settings import DistroSettings

SHAPES = {"a": (24, 16), "b": (16, 40), "c": (40,), "d": (2, 8, 24), "e": ()}
RATE = 0.01


def build(**settings: Any) -> tuple[ToyModel, DistroOptimizer]:
    torch.manual_seed(0)
    model = ToyModel(SHAPES)
    return model, DistroOptimizer(DistroSettings(compression_chunk=8, compression_topk=5, **settings), model, compiled=False)


def all_rows(optimizer: DistroOptimizer) -> list[Any]:
    return [np.arange(group.count) for group in optimizer.replay.groups]


def draw(model: ToyModel, generator: torch.Generator) -> dict[str, Any]:
    return {name: torch.randn(tensor.shape, generator=generator) for name, tensor in model.parameters.items()}


def train(model: ToyModel, optimizer: DistroOptimizer, step: int, generator: torch.Generator) -> tuple[bytes, dict[str, Any]]:
    gradients = draw(model, generator)
    return trained(model, optimizer, step, gradients), gradients


def trained(model: ToyModel, optimizer: DistroOptimizer, step: int, gradients: dict[str, Any]) -> bytes:
    for name, parameter in model.parameters.items():
        parameter.grad = gradients[name]
    return optimizer.compress(step, learning_rate=RATE)


@pytest.mark.parametrize(
    "settings",
    [
        {"quantize_1bit": True},
        {"quantize_1bit": True, "clip_grad_norm": 1.0},
        {"value_bits": 16},
        {"quantize_1bit": True, "compression_subtract": 0.7, "compression_decay": 0.9},
        {"quantize_1bit": True, "gradient_beta2": 0.9, "clip_grad_norm": 1.0},
    ],
)
def test_the_claimed_contribution_is_that_of_the_gradient(settings: dict[str, Any]) -> None:
    model, optimizer = build(**settings)
    generator = torch.Generator().manual_seed(1)
    rows = all_rows(optimizer)
    payload, _ = train(model, optimizer, 1, generator)
    for step in range(2, 6):
        before, taken = optimizer.replay.delta(rows), optimizer.replay.taken(step - 1, rows)
        if step > 2:
            optimizer.apply(step - 2, [payload], learning_rate=RATE, own_accepted=True)
        gradients = draw(model, generator)
        expected = optimizer.replay.contribution(gradients, rows, learning_rate=RATE)
        other = optimizer.replay.contribution({"a": gradients["a"]}, rows, learning_rate=RATE)
        own = trained(model, optimizer, step, gradients)
        after = optimizer.replay.delta(rows)
        decay, off = optimizer.replay.decay, optimizer.replay.elements(taken)
        added = [claimed(new, old, minus, decay=decay) for new, old, minus in zip(after, before, off, strict=True)]
        parts = [chunk_scores(one, other, before=old) for one, other, old in zip(added, expected, before, strict=True)]
        assert mean_score(parts) < 1e-9
        assert mean_score(chunk_scores(one, two, before=old) for one, two, old in zip(added, other, before, strict=True)) > 0.3
        check_payload(optimizer, own, after, rows)
        payload = own


def check_payload(optimizer: DistroOptimizer, payload: bytes, delta: Sequence[Any], rows: Sequence[Any]) -> None:
    coefficients, sent = optimizer.replay.coefficients(delta), optimizer.replay.sent(payload, rows)
    for group, one, two in zip(optimizer.replay.groups, coefficients, sent, strict=True):
        assert payload_agreement(one, two, topk=group.topk).passes(Rule())
        assert group.size <= group.topk or not payload_agreement(one[::-1].copy(), two, topk=group.topk).passes(Rule())


def test_some_rows_are_those_of_all() -> None:
    model, optimizer = build(quantize_1bit=True)
    payload, gradients = train(model, optimizer, 1, torch.Generator().manual_seed(2))
    rows, replay = all_rows(optimizer), optimizer.replay
    some = [row[1::3] for row in rows]
    for whole, part in (
        (replay.delta(rows), replay.delta(some)),
        (replay.taken(1, rows), replay.taken(1, some)),
        (replay.sent(payload, rows), replay.sent(payload, some)),
        (replay.contribution(gradients, rows, learning_rate=RATE), replay.contribution(gradients, some, learning_rate=RATE)),
    ):
        assert all((one[1::3] == two).all() for one, two in zip(whole, part, strict=True))
    for values in replay.elements(replay.coefficients(replay.delta(rows))), replay.delta(rows):
        assert [array.shape for array in values] == [(group.count, group.size) for group in replay.groups]
    assert np.allclose(
        np.concatenate(replay.elements(replay.coefficients(replay.delta(rows))), axis=None), flat(replay.delta(rows))
    )


def flat(arrays: Sequence[Any]) -> Any:
    return np.concatenate(arrays, axis=None)


def test_positions_are_those_of_chunks_that_choose() -> None:
    model, optimizer = build(quantize_1bit=True)
    generator = torch.Generator().manual_seed(3)
    payloads = [train(model, optimizer, step, generator)[0] for step in (1, 2)]
    first, second = (optimizer.replay.positions(payload) for payload in payloads)
    sent = optimizer.replay.sent(payloads[0], all_rows(optimizer))
    chosen = sum(
        int((array != 0).sum()) for array, group in zip(sent, optimizer.replay.groups, strict=True) if group.size > group.topk
    )
    assert first.dtype == np.int64
    assert (np.diff(first) > 0).all()
    assert first.size == chosen < sum(int((array != 0).sum()) for array in sent), "the scalar sends all it has"
    assert jaccard(first, first) == 1.0
    assert jaccard(first, second) < 0.5


def test_what_is_settled_is_not_shown() -> None:
    model, optimizer = build(quantize_1bit=True)
    payload, _ = train(model, optimizer, 1, torch.Generator().manual_seed(4))
    optimizer.apply(1, [payload], learning_rate=RATE, own_accepted=True)
    with pytest.raises(ValueError, match="settled"):
        optimizer.replay.taken(1, all_rows(optimizer))
