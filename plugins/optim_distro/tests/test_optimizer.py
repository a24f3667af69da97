"""The optimizer object: the reference's worked pipeline, what happens to results that are not accepted, and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, Literal

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from psyche_core.errors import ModelError, PayloadRejected
from psyche_core.hookspecs import OptimizerContext
from psyche_core.testing.optimizer import Replica, digest, play_rounds
from psyche_core.testing.toy_model import TOY_SHAPES, ToyModel, toy_samples
from psyche_optim_distro import hooks
from psyche_optim_distro.chunks.layout import Layout, build_layout
from psyche_optim_distro.chunks.transform import dct_basis, decode
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.top_k import Selection
from psyche_optim_distro.settings import DistroSettings
from psyche_optim_distro.value_format import ValueFormat


def build(shapes: Mapping[str, tuple[int, ...]], **settings: Any) -> tuple[ToyModel, DistroOptimizer]:
    """A model with zero weights and its optimizer."""
    model = ToyModel(shapes)
    for parameter in model.parameters.values():
        parameter.data.zero_()
    return model, DistroOptimizer(DistroSettings(**settings), model)


def set_gradient(model: ToyModel, **gradients: Tensor) -> None:
    for name, parameter in model.parameters.items():
        parameter.grad = gradients.get(name, torch.zeros_like(parameter)).to(parameter.dtype)


@pytest.mark.parametrize("name", ["pipeline_2nodes_4x4_exact", "pipeline_2nodes_4x4_1bit"])
def test_pipeline_2nodes_4x4(vectors: dict[str, Any], name: str) -> None:
    """Six overlapped rounds of two nodes: every gradient, delta, index, value, sign and weight of the reference.

    The reference multiplies the weights by 1 - lr * wd while it generates, after the gradient; we do it at the start of the next
    apply. So gradients, deltas and payloads are equal, and its stored weights are ours times that factor. Values of both senders
    weigh alike with us and by their size there, which gives 3 of the 64 directions another sign.
    """
    case = vectors[name]
    rate, one_bit = case["lr"], name.endswith("1bit")
    settings = {
        "compression_decay": case["compression_decay"],
        "compression_topk": case["topk"],
        "compression_chunk": case["chunk"],
        "weight_decay": case["weight_decay"],
        "quantize_1bit": one_bit,
        "value_bits": 32,
    }
    layout = build_layout({"w": (4, 4)}, chunk=case["chunk"], topk=case["topk"])
    nodes = [build({"w": (4, 4)}, **settings) for _ in case["targets"]]
    sent: list[list[bytes]] = []
    others = 0
    for number, expected in enumerate(case["rounds"]):
        payloads = []
        for (model, optimizer), target, node in zip(nodes, case["targets"], expected["nodes"], strict=True):
            weights = optimizer.masters["w"]
            if number >= 2:
                before = weights.clone()
                optimizer.apply(number - 2, sent[number - 2], learning_rate=rate, own_accepted=True)
                moved = (before * (1 - rate * case["weight_decay"]) - weights) / rate
                exact, reference = exact_signs(layout, sent[number - 2], one_bit=one_bit), torch.tensor(expected["applied_sign"])
                close(moved, exact.tolist())
                others += int((exact != reference).logical_and(exact != 0).sum())
                weights -= rate * (reference - exact)  # follow the reference on, rounding noise and all

            optimizer.load_lookahead(learning_rate=rate)
            set_gradient(model, w=model.parameters["w"].detach() - torch.tensor(target))
            close(model.parameters["w"].grad, node["grad"])
            payloads.append(optimizer.compress(number, learning_rate=rate))
            close(optimizer.delta["w"], node["delta_after"])
            close(weights * (1 - rate * case["weight_decay"]), node["p_after"])

            got = codec.decode(layout, payloads[-1], values=ValueFormat.SIGNS if one_bit else ValueFormat.FLOAT32)
            values = torch.tensor(node["val"]).sign().tolist() if one_bit else node["val"]
            assert dict(zip(got.indices.tolist(), got.values.tolist(), strict=True)) == pytest.approx(
                dict(zip(node["idx"], values, strict=True)), abs=2e-6
            )
        sent.append(payloads)
    assert others == (0 if one_bit else 3 * len(nodes))


def exact_signs(layout: Layout, payloads: Sequence[bytes], *, one_bit: bool) -> Tensor:
    """The signs of the decoded mean [4, 4] in float64, where values have the root mean square 1 for every sender.

    Zero where it is zero in exact arithmetic: there the reference's sign is its rounding noise (1-bit, round 5).
    """
    total, count = torch.zeros(16, dtype=torch.float64), torch.zeros(16, dtype=torch.float64)
    for payload in payloads:
        part = codec.decode(layout, payload, values=ValueFormat.SIGNS if one_bit else ValueFormat.FLOAT32)
        values = torch.from_numpy(part.values).double()
        total[torch.from_numpy(part.indices)] += values / values.square().mean().sqrt()
        count[torch.from_numpy(part.indices)] += 1
    decoded = decode((total / count.clamp(min=1)).view(1, 4, 4), dct_basis(4), dct_basis(4)).view(4, 4)
    return torch.where(decoded.abs() < 1e-12, 0.0, decoded.sign()).float()


def close(got: Tensor | None, expected: Sequence[Sequence[float]]) -> None:
    """Equal to the six decimals the vectors have."""
    assert got is not None
    torch.testing.assert_close(got, torch.tensor(expected), rtol=0, atol=3e-6)


def single_coefficient() -> Tensor:
    """A block whose DCT is one coefficient, so that one round sends all of it."""
    return torch.full((4, 4), 0.25)


def after_one_round(*, compress_next: bool, decay: float = 0.5, subtract: float = 1.0) -> tuple[ToyModel, DistroOptimizer, bytes]:
    model, optimizer = build(
        {"w": (4, 4)},
        compression_decay=decay,
        compression_topk=1,
        compression_chunk=4,
        compression_subtract=subtract,
        quantize_1bit=True,
    )
    set_gradient(model, w=single_coefficient())
    payload = optimizer.compress(1, learning_rate=1.0)
    if compress_next:
        set_gradient(model)
        optimizer.compress(2, learning_rate=1.0)
    return model, optimizer, payload


def test_a_sent_result_stays_in_delta_until_the_next_round() -> None:
    _, optimizer, _ = after_one_round(compress_next=False)
    close(optimizer.delta["w"], single_coefficient().tolist())
    _, optimizer, _ = after_one_round(compress_next=True)
    close(optimizer.delta["w"], torch.zeros(4, 4).tolist())


def test_an_accepted_result_is_not_sent_again() -> None:
    _, optimizer, payload = after_one_round(compress_next=True)
    optimizer.apply(1, [payload], learning_rate=1.0, own_accepted=True)
    close(optimizer.delta["w"], torch.zeros(4, 4).tolist())


def test_the_last_result_of_an_epoch_is_subtracted_in_the_drain() -> None:
    """modeling.md 9, number 4: the reference sends it twice."""
    _, optimizer, payload = after_one_round(compress_next=False)
    optimizer.apply(1, [payload], learning_rate=1.0, own_accepted=True)
    close(optimizer.delta["w"], torch.zeros(4, 4).tolist())


def test_a_refused_result_is_added_back_as_if_never_subtracted() -> None:
    _, optimizer, _ = after_one_round(compress_next=True, decay=0.5)
    optimizer.apply(1, [], learning_rate=1.0, own_accepted=False)
    close(optimizer.delta["w"], (0.5 * single_coefficient()).tolist())


def test_a_part_of_a_sent_result_may_stay_in_delta() -> None:
    """compression_subtract: the rest decays as momentum, and a refused result is added back as far as it was subtracted."""
    _, optimizer, payload = after_one_round(compress_next=True, decay=0.5, subtract=0.75)
    rest = 0.5 * (1 - 0.75) * single_coefficient()
    close(optimizer.delta["w"], rest.tolist())
    optimizer.apply(1, [payload], learning_rate=1.0, own_accepted=True)
    close(optimizer.delta["w"], rest.tolist())

    _, optimizer, _ = after_one_round(compress_next=True, decay=0.5, subtract=0.75)
    optimizer.apply(1, [], learning_rate=1.0, own_accepted=False)
    close(optimizer.delta["w"], (0.5 * single_coefficient()).tolist())


def test_a_refused_last_result_stays_in_delta() -> None:
    _, optimizer, _ = after_one_round(compress_next=False)
    optimizer.apply(1, [], learning_rate=1.0, own_accepted=False)
    close(optimizer.delta["w"], single_coefficient().tolist())


def test_a_result_of_a_step_that_was_passed_over_counts_as_refused() -> None:
    model, optimizer, _ = after_one_round(compress_next=True, decay=0.5)
    optimizer.apply(5, [], learning_rate=1.0, own_accepted=False)
    close(optimizer.delta["w"], (0.5 * single_coefficient()).tolist())
    optimizer.compress(1, learning_rate=1.0)  # nothing is waiting any more
    assert model is not None


def test_a_step_cannot_be_compressed_twice() -> None:
    _, optimizer, _ = after_one_round(compress_next=False)
    with pytest.raises(ValueError, match="step 1"):
        optimizer.compress(1, learning_rate=1.0)


def test_exact_values_are_subtracted_although_signs_are_sent() -> None:
    _, optimizer, payload = after_one_round(compress_next=True)
    layout = build_layout({"w": (4, 4)}, chunk=4, topk=1)
    # The coefficient itself is 1.0 only by scale.
    assert codec.decode(layout, payload, values=ValueFormat.SIGNS).values.tolist() == [1.0]
    model, optimizer = build({"w": (4, 4)}, compression_topk=1, compression_chunk=4, quantize_1bit=True, compression_decay=0.0)
    set_gradient(model, w=0.125 * single_coefficient())
    optimizer.compress(1, learning_rate=1.0)
    optimizer.apply(1, [], learning_rate=1.0, own_accepted=True)
    close(optimizer.delta["w"], torch.zeros(4, 4).tolist())


def test_gradients_are_clipped_to_the_global_norm() -> None:
    shapes = {"a": (4, 4), "b": (4,)}
    model, optimizer = build(shapes, compression_chunk=4, clip_grad_norm=1.0)
    set_gradient(model, a=torch.full((4, 4), 3.0), b=torch.full((4,), 4.0))  # norm sqrt(16 * 9 + 4 * 16) = 14.42
    optimizer.compress(1, learning_rate=1.0)
    norm = torch.sqrt(sum((delta.square().sum() for delta in optimizer.delta.values()), torch.zeros(())))
    assert float(norm) == pytest.approx(1.0, abs=1e-5)
    close(optimizer.delta["a"] / optimizer.delta["b"][0], torch.full((4, 4), 0.75).tolist())

    free_model, free = build(shapes, compression_chunk=4, clip_grad_norm=0.0)
    set_gradient(free_model, a=torch.full((4, 4), 3.0), b=torch.full((4,), 4.0))
    free.compress(1, learning_rate=1.0)
    close(free.delta["a"], torch.full((4, 4), 3.0).tolist())


def test_weight_decay_is_part_of_apply_and_the_same_for_members_that_did_not_train() -> None:
    """The reference decays while generating, so a node that trains nothing splits (modeling.md 9, number 13)."""
    members = [build(TOY_SHAPES, weight_decay=0.5, quantize_1bit=True) for _ in range(2)]
    for model, optimizer in members:
        optimizer.load_parameters({name: torch.ones_like(value) for name, value in model.parameters.items()})
    model, optimizer = members[0]
    model.fill_gradients(1.0)
    payload = optimizer.compress(1, learning_rate=0.1)
    for _, member in members:
        member.apply(1, [payload], learning_rate=0.1, own_accepted=member is optimizer)
    assert digest(members[0][1].masters) == digest(members[1][1].masters)
    assert float(members[1][1].masters["odd.single"]) == pytest.approx(1 - 0.1 * 0.5 - 0.1)


def test_lookahead_is_masters_minus_the_sign_of_delta() -> None:
    model, optimizer, _ = after_one_round(compress_next=False)
    optimizer.load_lookahead(learning_rate=0.5)
    assert torch.equal(model.parameters["w"].detach(), torch.full((4, 4), -0.5))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    "changes", [{}, {"quantize_1bit": False}, {"second_stage": "clip"}, {"second_stage": "orthogonal"}, {"rates": {"norm": 3}}]
)
def test_a_lookahead_by_payload_is_where_the_newest_result_alone_would_move_the_masters(
    changes: dict[str, Any], compiled: bool
) -> None:
    """Until it is settled; then there is nothing to look ahead by, whatever delta holds."""
    model = ToyModel({"a": (16, 8), "norm": (8,)})
    given = {"compression_topk": 3, "quantize_1bit": True, "weight_decay": 0.1, "lookahead": "payload", **changes}
    optimizer = DistroOptimizer(DistroSettings.model_validate(given), model, compiled=compiled)
    alone = DistroOptimizer(DistroSettings.model_validate({**given, "weight_decay": 0.0}), ToyModel({"a": (16, 8), "norm": (8,)}))
    for step in (1, 2):
        model.gradients(toy_samples(step), micro_batch_size=1)
        payload = optimizer.compress(step, learning_rate=0.5)
    alone.load_parameters({name: master.clone() for name, master in optimizer.masters.items()})
    alone.apply(2, [payload], learning_rate=0.5, own_accepted=False)
    before = digest(optimizer.masters)
    optimizer.load_lookahead(learning_rate=0.5)
    for name, weights in model.parameters.items():
        assert not torch.equal(weights, optimizer.masters[name])
        assert torch.allclose(weights, alone.masters[name], atol=1e-6)
    assert digest(optimizer.masters) == before
    optimizer.apply(2, [], learning_rate=0.5, own_accepted=False)
    optimizer.load_lookahead(learning_rate=0.5)
    assert all(torch.equal(weights, optimizer.masters[name]) for name, weights in model.parameters.items())


@pytest.mark.parametrize(
    ("one_bit", "compiled", "second_stage", "rounds"),
    [
        (True, True, None, 120),
        (True, False, None, 120),  # the plain code gives the compiled code's bits, which test_numba_backend.py sees to
        pytest.param(True, True, "clip", 500, marks=pytest.mark.soak),
        (True, True, "rmsprop", 120),
        (True, True, "orthogonal", 120),
        pytest.param(True, True, "orthogonal", 500, marks=pytest.mark.soak),
        (False, False, "clip", 120),
        pytest.param(True, True, None, 500, marks=pytest.mark.soak),
        pytest.param(True, True, "rmsprop", 500, marks=pytest.mark.soak),
        pytest.param(True, False, None, 500, marks=pytest.mark.soak),
        pytest.param(True, False, "clip", 500, marks=pytest.mark.soak),
        pytest.param(False, False, None, 500, marks=pytest.mark.soak),
    ],
)
def test_hundreds_of_rounds_of_four_replicas_end_with_equal_digests(
    one_bit: bool, compiled: bool, second_stage: Literal["clip", "rmsprop", "orthogonal"] | None, rounds: int
) -> None:
    shapes = {"embed": (64, 48), "norm": (48,), "odd": (29, 6)}
    replicas = []
    for _ in range(4):
        model = ToyModel(shapes, dtype=torch.bfloat16)
        settings = DistroSettings(
            compression_topk=4, quantize_1bit=one_bit, weight_decay=0.1, clip_grad_norm=1.0, second_stage=second_stage
        )
        replicas.append(Replica(model, DistroOptimizer(settings, model, compiled=compiled)))
    digests: list[set[str]] = []
    play_rounds(
        replicas,
        rounds=rounds,
        learning_rate=0.003,
        after_round=lambda: digests.append({digest(replica.optimizer.masters) for replica in replicas}),
    )
    assert [len(distinct) for distinct in digests] == [1] * (rounds + 2)
    assert len(set.union(*digests)) > 0.96 * rounds


@pytest.mark.parametrize("one_bit", [True, False])
def test_what_was_checked_before_is_applied_alike(one_bit: bool) -> None:
    """Some checked, one twice, one evicted by others, one that two members sent alike."""
    shapes = {"embed": (64, 48), "odd": (29, 6)}
    settings = {"compression_chunk": 16, "compression_topk": 4, "quantize_1bit": one_bit}
    model, sender = build(shapes, **settings)
    generator = torch.Generator().manual_seed(5)
    payloads = []
    for step in range(1, 6):
        set_gradient(model, **{name: torch.randn(shape, generator=generator) for name, shape in shapes.items()})
        payloads.append(sender.compress(step, learning_rate=0.1))
        sender.apply(step, [], learning_rate=0.1, own_accepted=False)
    payloads.append(payloads[0])

    digests = set()
    for checked in (
        [],
        payloads,
        payloads[:2],
        [payloads[1], payloads[1]],
        [*payloads, *(payload + b"" for payload in payloads)],
    ):
        _, optimizer = build(shapes, **settings)
        for payload in checked:
            optimizer.check(payload)
        for step in (1, 2):
            optimizer.apply(step, payloads, learning_rate=0.1, own_accepted=False)
        digests.add(digest(optimizer.masters))
    assert len(digests) == 1


def test_the_order_of_arrival_does_not_matter_for_values() -> None:
    """65536 - 65536 + 1e-20 is not 65536 + 1e-20 - 65536, in float64 either."""
    layout = build_layout({"w": (1,)}, chunk=1, topk=1)
    zero = np.zeros(1, np.int64)
    payloads = [
        codec.encode(layout, Selection(zero, zero, np.array([value], np.float32)), values=ValueFormat.BFLOAT16)
        for value in (65536, -65536, 1e-20)
    ]
    ends = set()
    for order in permutations(payloads):
        _, optimizer = build({"w": (1,)}, compression_chunk=1, compression_topk=1)
        optimizer.apply(1, order, learning_rate=0.1, own_accepted=False)
        ends.add(float(optimizer.masters["w"]))
    assert len(ends) == 1


def test_a_bad_payload_in_apply_changes_nothing() -> None:
    _, optimizer, payload = after_one_round(compress_next=False)
    before = digest(optimizer.masters), digest(optimizer.delta)
    with pytest.raises(PayloadRejected):
        optimizer.apply(1, [payload, payload[:-1]], learning_rate=1.0, own_accepted=True)
    assert (digest(optimizer.masters), digest(optimizer.delta)) == before


def test_load_parameters_refuses_other_names_and_shapes() -> None:
    _, optimizer, _ = after_one_round(compress_next=False)
    before = digest(optimizer.masters), digest(optimizer.delta)
    for wrong in ({}, {"v": torch.zeros(4, 4)}, {"w": torch.zeros(2, 8)}):
        with pytest.raises(ModelError):
            optimizer.load_parameters(wrong)
    assert (digest(optimizer.masters), digest(optimizer.delta)) == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"compression_decay": 1.0},
        {"compression_decay": -0.1},
        {"compression_subtract": 0.0},
        {"compression_subtract": 1.1},
        {"compression_topk": 0},
        {"compression_topk": 4097},
        {"compression_topk": 65, "compression_chunk": 8},
        {"compression_chunk": 0},
        {"compression_chunk": 1025},
        {"weight_decay": -1.0},
        {"clip_grad_norm": float("nan")},
        {"compress_topk": 4},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DistroSettings(**wrong)


def test_all_values_of_a_chunk_may_be_sent() -> None:
    assert DistroSettings(compression_topk=64, compression_chunk=8).compression_topk == 64
    assert DistroSettings(compression_chunk=4).compression_topk == 32, "nobody has asked for so many"


def test_the_plugin_registers_distro() -> None:
    (registration,) = hooks.psyche_register_optimizers()
    assert registration.name == "Distro"
    settings = registration.settings.model_validate(
        {"clip_grad_norm": 1.0, "compression_decay": 0.999, "compression_topk": 2, "compression_chunk": 64, "quantize_1bit": True}
    )
    context = OptimizerContext(settings=settings, model=ToyModel())
    assert isinstance(registration.create(context), DistroOptimizer)
