"""A divided optimizer has the payloads, masters and state of an undivided one, byte for byte, and fulfils the whole contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psyche_core.errors import ModelError, NonFiniteError, PayloadRejected
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.parameters import shapes_of
from psyche_core.interfaces.rate_groups import RateGroups
from psyche_core.testing.optimizer import OptimizerConformance
from psyche_core.testing.optimizer_parts import LocalParts
from psyche_core.training.shared_tensors import shared_digest
from psyche_optim_distro.chunks.layout import build_layout
from psyche_optim_distro.division.divided import DividedDistro
from psyche_optim_distro.division.part import DistroPart
from psyche_optim_distro.division.table import part_tables
from psyche_optim_distro.optimizer import DistroOptimizer, HasParameters
from psyche_optim_distro.settings import DistroSettings

SHAPES = {"embed": (48, 8), "layer.norm": (8,), "layer.up": (2, 12, 20), "layer.z": (7, 3), "scalar": (), "very.long": (1, 640)}
RATE = 2.0**-9
DELAY = 2

ANY_SETTINGS = st.fixed_dictionaries(
    {
        "compression_chunk": st.sampled_from([3, 8, 64, 640]),
        "compression_topk": st.integers(1, 4),
        "compression_decay": st.sampled_from([0.0, 0.75, 0.999]),
        "compression_subtract": st.sampled_from([0.5, 1.0]),
        "quantize_1bit": st.booleans(),
        "value_bits": st.sampled_from([16, 32]),
        "gradient_beta2": st.sampled_from([None, 0.9]),
        "clip_grad_norm": st.sampled_from([None, 0.5]),
        "weight_decay": st.sampled_from([None, 0.25]),
        "second_stage": st.sampled_from([None, "clip", "rmsprop", "orthogonal"]),
        "lookahead": st.sampled_from(["delta", "payload"]),
        "rates": st.sampled_from([None, RateGroups(embedding=3.0, norm=0.5)]),
    }
)


@dataclass(slots=True)
class Parameters:
    """Stands for a model."""

    parameters: dict[str, torch.nn.Parameter]

    @classmethod
    def of(cls, shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Parameters:
        generator = torch.Generator().manual_seed(seed)
        return cls({name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in sorted(shapes.items())})

    def draw_gradients(self, seed: int, *, without: str = "") -> None:
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.parameters.items():
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = None if name == without else gradient


def divided(settings: DistroSettings, model: HasParameters, *, parts: int, compiled: bool = True) -> DividedDistro:
    shapes = shapes_of(model.parameters)
    device = next(iter(model.parameters.values())).device
    tables = part_tables(shapes, chunk=settings.compression_chunk, topk=settings.compression_topk, parts=parts)
    own = [DistroPart(settings, shapes, number=number, parts=parts, device=device, compiled=compiled) for number in range(parts)]
    return DividedDistro(settings, model, LocalParts(own), tables=tables, compiled=compiled)


def usable(**given: Any) -> DistroSettings | None:
    if given["second_stage"] == "rmsprop" and (not given["quantize_1bit"] or given["lookahead"] == "payload"):
        return None
    return DistroSettings(**given)


def assert_same(whole: Optimizer, parted: Optimizer) -> None:
    for ours, theirs in (
        (whole.masters, parted.masters),
        (whole.public_state, parted.public_state),
        (whole.momentum, parted.momentum),
        (whole.private_state(), parted.private_state()),
    ):
        assert sorted(ours) == sorted(theirs)
        for name, tensor in ours.items():
            assert tensor.shape == theirs[name].shape
            assert torch.equal(tensor, theirs[name]), name
    assert shared_digest(whole) == shared_digest(parted)


def train(
    chosen: DistroSettings, shapes: dict[str, tuple[int, ...]], *, parts: int, compiled: bool, seed: int, steps: int = 5
) -> tuple[DistroOptimizer, Parameters, Any, Parameters]:
    one, several = Parameters.of(shapes), Parameters.of(shapes)
    whole = DistroOptimizer(chosen, one, compiled=compiled)
    parted = divided(chosen, several, parts=parts, compiled=compiled)
    names = sorted(shapes)
    sent: dict[int, list[bytes]] = {}
    for step in range(1, steps + 1):
        for optimizer in (whole, parted):
            if step > DELAY:
                for payload in sent[step - DELAY]:
                    optimizer.check(payload)
                # some steps leave ours out, and one is empty
                accepted = sent[step - DELAY] if step % 3 else sent[step - DELAY][1:]
                optimizer.apply(step - DELAY, accepted, learning_rate=RATE, own_accepted=bool(step % 3))
            optimizer.load_lookahead(learning_rate=RATE)
        for name in names:
            assert torch.equal(one.parameters[name], several.parameters[name]), "the weights to train with"
        for model in (one, several):
            model.draw_gradients(seed * 100 + step, without=names[0] if step == 2 else "")
        ours, theirs = (optimizer.compress(step, learning_rate=RATE) for optimizer in (whole, parted))
        assert ours == theirs, f"the payload of step {step}"
        other = DistroOptimizer(chosen, one, compiled=compiled)
        one.draw_gradients(seed * 100 + step + 50)
        sent[step] = [ours, *([other.compress(1, learning_rate=RATE)] if step % 2 else [])]
        assert_same(whole, parted)
    return whole, one, parted, several


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@given(given_settings=ANY_SETTINGS, compiled=st.booleans(), seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_parts_are_one_optimizer_whatever_the_settings(
    parts: int, given_settings: dict[str, Any], compiled: bool, seed: int
) -> None:
    chosen = usable(**given_settings)
    if chosen is not None:
        train(chosen, SHAPES, parts=parts, compiled=compiled, seed=seed)


@given(
    sizes=st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=5),
    parts=st.integers(1, 6),
    chunk=st.sampled_from([2, 4, 8]),
    one_bit=st.booleans(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_parts_are_one_optimizer_whatever_the_shapes(sizes: list[list[int]], parts: int, chunk: int, one_bit: bool) -> None:
    shapes = {f"p{number}": tuple(size) for number, size in enumerate(sizes)}
    chosen = DistroSettings(compression_chunk=chunk, compression_topk=3, quantize_1bit=one_bit, gradient_beta2=0.5)
    if part_tables(shapes, chunk=chunk, topk=3, parts=parts):
        train(chosen, shapes, parts=parts, compiled=False, seed=1, steps=4)


@given(
    sizes=st.lists(st.lists(st.integers(0, 30), max_size=3), min_size=1, max_size=6),
    parts=st.integers(1, 5),
    chunk=st.integers(1, 9),
)
def test_every_row_of_blocks_is_in_one_part(sizes: list[list[int]], parts: int, chunk: int) -> None:
    shapes = {f"p{number}": tuple(size) for number, size in enumerate(sizes)}
    whole = build_layout(shapes, chunk=chunk, topk=2)
    tables = part_tables(shapes, chunk=chunk, topk=2, parts=parts)
    rows = sum(group.row_blocks for group in whole.groups)
    assert len(tables) == min(parts, rows)
    begin = first = 0
    longest = max((group.height * group.columns for group in whole.groups), default=0)
    for table in tables:
        assert (table.start, table.first_chunk) == (begin, first)
        assert 0 < table.layout.total == table.stop - table.start
        assert table.layout.total <= whole.total / len(tables) + longest * len(tables)
        begin, first = table.stop, table.last_chunk
    assert (begin, first) == (whole.total, whole.chunk_class.size)


@pytest.mark.parametrize("parts", [2, 3])
def test_state_that_one_of_them_saved_is_continued_by_the_other(parts: int) -> None:
    chosen = DistroSettings(
        compression_chunk=8, compression_topk=2, quantize_1bit=True, second_stage="rmsprop", gradient_beta2=0.9
    )
    whole, one, parted, several = train(chosen, SHAPES, parts=parts, compiled=True, seed=3)
    ended = DELAY + 4
    for optimizer in (whole, parted):
        optimizer.apply(ended, [], learning_rate=RATE, own_accepted=False)
    first, second = Parameters.of(SHAPES, seed=9), Parameters.of(SHAPES, seed=9)
    joiner, divided_joiner = DistroOptimizer(chosen, first), divided(chosen, second, parts=parts)
    for new, old in ((joiner, parted), (divided_joiner, whole)):
        new.load_public_state({name: tensor.clone() for name, tensor in old.public_state.items()})
        new.load_parameters({name: tensor.clone() for name, tensor in old.masters.items()})
        new.load_private_state({name: tensor.clone() for name, tensor in old.private_state().items()})
    assert_same(joiner, divided_joiner)
    assert_same(whole, joiner)
    payloads = []
    for optimizer, model in ((whole, one), (parted, several), (joiner, first), (divided_joiner, second)):
        optimizer.load_lookahead(learning_rate=RATE)
        model.draw_gradients(77)
        payloads.append(optimizer.compress(ended + 1, learning_rate=RATE))
    assert len(set(payloads)) == 1


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    chosen = DistroSettings(compression_chunk=8, compression_topk=2)
    _, _, parted, several = train(chosen, SHAPES, parts=3, compiled=True, seed=4)
    before = {name: tensor.clone() for name, tensor in parted.momentum.items()}
    several.draw_gradients(1)
    several.parameters["layer.up"].grad.view(-1)[5] = float("inf")  # type: ignore[union-attr]
    with pytest.raises(NonFiniteError, match="global L2 norm of the gradient is inf"):
        parted.compress(9, learning_rate=RATE)
    several.draw_gradients(1)
    with pytest.raises(NonFiniteError, match="delta would not be finite after adding the gradient of step 9"):
        parted.compress(9, learning_rate=1e35)
    assert all(torch.equal(tensor, before[name]) for name, tensor in parted.momentum.items())
    parted.compress(9, learning_rate=RATE)
    with pytest.raises(ValueError, match="compressed already"):
        parted.compress(9, learning_rate=RATE)


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    chosen = DistroSettings(compression_chunk=8, compression_topk=2, quantize_1bit=True, second_stage="rmsprop")
    whole, _, parted, _ = train(chosen, SHAPES, parts=3, compiled=True, seed=5)
    masters = {name: tensor.clone() for name, tensor in whole.masters.items()}
    with pytest.raises(ModelError, match="missing or unknown: embed"):
        parted.load_parameters({name: tensor for name, tensor in masters.items() if name != "embed"})
    with pytest.raises(ModelError, match=r"embed of the parameters must have shape \(48, 8\), got \(8, 48\)"):
        parted.load_parameters({**masters, "embed": masters["embed"].T})
    state = {name: tensor.clone() for name, tensor in whole.public_state.items()}
    with pytest.raises(
        ModelError, match=r"mean_square\.embed of the optimizer's public state must hold no NaN and no values below 0"
    ):
        parted.load_public_state({**state, "mean_square.embed": state["mean_square.embed"] - 1})
    private = {name: tensor.clone() for name, tensor in whole.private_state().items()}
    with pytest.raises(ModelError, match="values that are not finite"):
        parted.load_private_state({**private, "delta.embed": private["delta.embed"] * float("nan")})
    with pytest.raises(PayloadRejected):
        parted.apply(9, [b"nonsense"], learning_rate=RATE, own_accepted=False)
    assert_same(whole, parted)


class TestDividedDistro(OptimizerConformance):
    capabilities = frozenset({"exact"})

    def make_optimizer(self, model: Model) -> Optimizer:
        chosen = DistroSettings(compression_topk=4, quantize_1bit=True, weight_decay=0.1, clip_grad_norm=1.0)
        return divided(chosen, model, parts=3)


class TestDividedDistroWithPublicState(OptimizerConformance):
    capabilities = frozenset({"exact", "public-state"})

    def make_optimizer(self, model: Model) -> Optimizer:
        chosen = DistroSettings(compression_topk=4, quantize_1bit=True, weight_decay=0.1, second_stage="rmsprop")
        return divided(chosen, model, parts=2)
