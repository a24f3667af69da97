"""Defects of the reference's DisTrO that ours must not have, named after its facts (modeling.md 9 and client.md 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from psyche_core.errors import NonFiniteError, PayloadRejected
from psyche_core.testing.optimizer import Replica, digest, play_rounds
from psyche_core.testing.toy_model import ToyModel
from psyche_optim_distro.chunks.layout import build_layout
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.top_k import Selection
from psyche_optim_distro.settings import DistroSettings
from psyche_optim_distro.value_format import ValueFormat


def replica(shapes: Mapping[str, tuple[int, ...]], *, dtype: torch.dtype = torch.float32, **settings: Any) -> Replica:
    model = ToyModel(shapes, dtype=dtype)
    return Replica(model, DistroOptimizer(DistroSettings(**settings), model))


def test_b1_weight_decay_acts_and_norms_move_with_bf16_weights() -> None:
    """Number 1: with bf16 weights the reference's weight decay is a no-op and a norm weight of 1 never moves at this rate."""
    member = replica({"norm": (64,)}, dtype=torch.bfloat16, weight_decay=0.1, quantize_1bit=True)
    member.model.parameters["norm"].data.fill_(1.0)
    member.optimizer.load_parameters({"norm": torch.ones(64)})
    member.model.fill_gradients(1.0)
    payload = member.optimizer.compress(1, learning_rate=4e-4)
    member.optimizer.apply(1, [payload], learning_rate=4e-4, own_accepted=True)
    assert torch.allclose(member.optimizer.masters["norm"], torch.tensor(1 - 4e-4 * 0.1 - 4e-4), rtol=0, atol=1e-7)


def test_b1_the_decay_of_delta_acts_with_bf16_weights() -> None:
    """Number 1: .999 leaves every bf16 number as it is."""
    member = replica({"w": (64, 64)}, dtype=torch.bfloat16, compression_decay=0.999)
    assert isinstance(member.optimizer, DistroOptimizer)
    member.train(1, data=1, learning_rate=0.1)
    member.optimizer.apply(1, [], learning_rate=0.1, own_accepted=False)
    before = member.optimizer.delta["w"].clone()
    member.model.fill_gradients(0.0)
    member.optimizer.compress(2, learning_rate=0.1)
    assert torch.equal(member.optimizer.delta["w"], before * 0.999)
    assert float((member.optimizer.delta["w"] != before).float().mean()) > 0.99


def test_b2_lookahead_in_bf16_does_not_split_replicas() -> None:
    """Number 2: doing and undoing the look-ahead in bf16 lets 3.4 % of the reference's weights differ after 600 rounds."""
    members = [replica({"w": (64, 64)}, dtype=torch.bfloat16, compression_topk=8, quantize_1bit=True) for _ in range(4)]
    play_rounds(members, rounds=60, learning_rate=4e-4)
    for member in members:
        member.optimizer.load_masters()
    assert len({digest(member.optimizer.masters) for member in members}) == 1
    assert len({digest({"w": member.model.parameters["w"].float()}) for member in members}) == 1


def test_b3_delta_starts_at_zero() -> None:
    """Number 3: the reference's delta starts uninitialised; garbage there would show in the first look-ahead."""
    for _ in range(5):
        member = replica({"w": (64, 64)}, quantize_1bit=True)
        before = digest(member.model.parameters)
        member.optimizer.load_lookahead(learning_rate=1.0)
        assert digest(member.model.parameters) == before


@pytest.mark.parametrize("table", [{"quantize_1bit": True}, {"value_bits": 16}, {"value_bits": 32}])
def test_b6_all_zero_chunks_send_nothing_and_move_nothing(table: dict[str, Any], vectors: dict[str, Any]) -> None:
    """Number 6: the reference sends +1 at arbitrary places of a zero chunk and moves its weights (vector all_zero_chunk_1bit)."""
    assert np.any(vectors["all_zero_chunk_1bit"]["decoded_sign_4x4"])  # what the reference does
    shapes = {"unused": (4, 4), "used": (4, 4)}
    member = replica(shapes, compression_topk=2, compression_chunk=4, **table)
    member.model.fill_gradients(0.0)
    member.model.parameters["used"].grad = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    payload = member.optimizer.compress(1, learning_rate=0.1)
    got = codec.decode(build_layout(shapes, chunk=4, topk=2), payload, values=DistroSettings(**table).values)
    assert set(got.chunks.tolist()) == {1}
    before = {name: master.clone() for name, master in member.optimizer.masters.items()}
    member.optimizer.apply(1, [payload], learning_rate=0.1, own_accepted=True)
    assert torch.equal(member.optimizer.masters["unused"], before["unused"])
    assert not torch.equal(member.optimizer.masters["used"], before["used"])


def test_b6_a_first_step_with_learning_rate_zero_sends_nothing() -> None:
    """The cold start's first step: delta is zero, so is the payload."""
    member = replica({"w": (64, 64)}, quantize_1bit=True)
    member.model.fill_gradients(1.0)
    payload = member.optimizer.compress(1, learning_rate=0.0)
    assert codec.decode(build_layout({"w": (64, 64)}, chunk=64, topk=32), payload, values=ValueFormat.SIGNS).chunks.size == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_b14_nan_does_not_enter_delta_or_freeze_a_chunk(bad: float) -> None:
    """Number 14: a NaN in the reference's delta never heals; a NaN coefficient freezes its chunk for everybody."""
    member = replica({"w": (8, 8)}, compression_chunk=8, compression_topk=4, quantize_1bit=True)
    member.model.fill_gradients(1.0)
    grad = member.model.parameters["w"].grad
    assert grad is not None
    grad[3, 3] = bad
    with pytest.raises(NonFiniteError):
        member.optimizer.compress(1, learning_rate=0.1)

    assert isinstance(member.optimizer, DistroOptimizer)
    assert not member.optimizer.delta["w"].any()
    member.model.fill_gradients(1.0)
    before = member.optimizer.masters["w"].clone()
    payload = member.optimizer.compress(1, learning_rate=0.1)
    member.optimizer.apply(1, [payload], learning_rate=0.1, own_accepted=True)
    assert bool((member.optimizer.masters["w"] < before).all())


def test_b14_a_nan_learning_rate_or_overflowing_delta_is_refused() -> None:
    for rate, gradient in ((float("nan"), 1.0), (1e30, 1e15)):
        member = replica({"w": (8, 8)}, compression_chunk=8)
        member.model.fill_gradients(gradient)
        with pytest.raises(NonFiniteError):
            member.optimizer.compress(1, learning_rate=rate)


def test_b14_a_gradient_norm_that_overflows_is_refused_and_not_clipped_to_nothing() -> None:
    """Finite gradients of 1e25 have no float32 norm; scaling by limit / infinity would silently train on zeros."""
    member = replica({"w": (8, 8)}, compression_chunk=8, clip_grad_norm=1.0)
    member.model.fill_gradients(1e25)
    with pytest.raises(NonFiniteError, match="norm"):
        member.optimizer.compress(1, learning_rate=0.1)


@pytest.mark.parametrize("place", [16, 17, 65535])
def test_b18_an_index_outside_its_chunk_is_rejected_before_it_reaches_a_scatter(place: int) -> None:
    """Number 18 and client.md 13: one out-of-range index crashes every node of the reference."""
    layout = build_layout({"w": (4, 8)}, chunk=4, topk=2)
    wide = Selection(np.array([0, 0, 1, 1]), np.array([0, 3, 1, place]), np.ones(4, np.float32))
    payload = codec.encode(layout, wide, values=ValueFormat.SIGNS)
    member = replica({"w": (4, 8)}, compression_chunk=4, compression_topk=2, quantize_1bit=True)
    with pytest.raises(PayloadRejected):
        member.optimizer.check(payload)


def test_b18_the_first_payload_does_not_rule_the_shapes_of_the_rest() -> None:
    """Number 18: the reference decodes every result with the first one's shapes. Ours come from our own table only."""
    other = replica({"w": (8, 4)}, compression_chunk=4, compression_topk=2, quantize_1bit=True)
    member = replica({"w": (4, 8)}, compression_chunk=4, compression_topk=2, quantize_1bit=True)
    payloads = []
    for sender in (other, member):
        sender.model.fill_gradients(1.0)
        payloads.append(sender.optimizer.compress(1, learning_rate=0.1))
    before = digest(member.optimizer.masters)
    with pytest.raises(PayloadRejected, match="other parameters"):
        member.optimizer.apply(1, payloads, learning_rate=0.1, own_accepted=True)
    assert digest(member.optimizer.masters) == before


def test_b18_too_few_parameters_are_rejected() -> None:
    fewer = replica({"a": (4, 4)}, compression_chunk=4, quantize_1bit=True)
    fewer.model.fill_gradients(1.0)
    payload = fewer.optimizer.compress(1, learning_rate=0.1)
    member = replica({"a": (4, 4), "b": (4,)}, compression_chunk=4, quantize_1bit=True)
    with pytest.raises(PayloadRejected):
        member.optimizer.check(payload)


def test_b22_a_dimension_quotient_over_65535_can_be_sent() -> None:
    """Number 22: the reference keeps quotients in 16 bits and cannot serialise a vector of 65537 single-element chunks."""
    member = replica({"w": (65537,)}, compression_chunk=64, quantize_1bit=True)
    member.model.fill_gradients(1.0)
    payload = member.optimizer.compress(1, learning_rate=0.1)
    member.optimizer.check(payload)
    assert codec.decode(build_layout({"w": (65537,)}, chunk=64, topk=32), payload, values=ValueFormat.SIGNS).chunks.size == 65537
