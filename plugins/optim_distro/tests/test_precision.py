"""The transform in bfloat16: what is sent is what float32 would send but for near ties, and noise is not sent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from psyche_core.testing.toy_model import ToyModel
from psyche_optim_distro.chunks import precision
from psyche_optim_distro.chunks.layout import build_layout
from psyche_optim_distro.chunks.precision import MIN_ELEMENTS, Precision, cpu_has_bfloat16, precision_for
from psyche_optim_distro.chunks.transform import dct_basis
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.payload import codec
from psyche_optim_distro.settings import DistroSettings
from psyche_optim_distro.value_format import ValueFormat

SHAPES = {"w": (256, 192), "norm": (192,)}
ROUNDED = Precision(torch.bfloat16)
RATE = 0.1


def build(kind: Precision, *, topk: int = 8) -> tuple[ToyModel, DistroOptimizer]:
    model = ToyModel(SHAPES)
    settings = DistroSettings(compression_topk=topk, compression_chunk=64, quantize_1bit=True)
    return model, DistroOptimizer(settings, model, precision=kind)


def sent(kind: Precision, gradient: Tensor, *, topk: int = 8) -> dict[tuple[int, int], float]:
    """Signs by chunk and index in the payload of one gradient of `w`; that of `norm` is zero."""
    model, optimizer = build(kind, topk=topk)
    model.parameters["w"].grad, model.parameters["norm"].grad = gradient, torch.zeros(192)
    payload = optimizer.compress(1, learning_rate=RATE)
    found = codec.decode(build_layout(SHAPES, chunk=64, topk=topk), payload, values=ValueFormat.SIGNS)
    return dict(zip(zip(found.chunks.tolist(), found.indices.tolist(), strict=True), found.values.tolist(), strict=True))


def test_bfloat16_sends_what_float32_does_but_for_near_ties() -> None:
    gradient = torch.randn(256, 192, generator=torch.Generator().manual_seed(5))
    exact, rounded = sent(Precision(), gradient), sent(ROUNDED, gradient)
    same = exact.keys() & rounded.keys()
    assert len(exact) == len(rounded) == 12 * 8
    assert len(same) >= 0.95 * len(exact)
    assert all(exact[place] == rounded[place] for place in same)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (3, 5), (63, 1), (40, 63)])
def test_rounding_noise_is_not_sent(row: int, column: int) -> None:
    """A block that is one basis function has one coefficient; its other 4,095 are noise, which a sign would make a full vote."""
    basis = dct_basis(64).float()
    gradient = torch.zeros(256, 192)
    gradient[64:128, 128:] = 3.7 * torch.outer(basis[:, row], basis[:, column])
    for kind in (Precision(), ROUNDED):
        places = sent(kind, gradient, topk=64)
        assert list(places.values()) == [1.0], kind
        assert [index for _, index in places] == [64 * row + column]


def test_what_was_sent_is_taken_off_delta_to_the_precision_it_was_found_in() -> None:
    model, optimizer = build(ROUNDED)
    gradient = torch.randn(256, 192, generator=torch.Generator().manual_seed(6))
    model.parameters["w"].grad, model.parameters["norm"].grad = gradient, torch.zeros(192)
    payload = optimizer.compress(1, learning_rate=RATE)
    basis = dct_basis(64)
    before = basis.T @ optimizer.delta["w"].double()[:64, :64] @ basis
    found = codec.decode(build_layout(SHAPES, chunk=64, topk=8), payload, values=ValueFormat.SIGNS)
    first = int(found.chunks[found.chunks >= 3].min())  # `norm` has three chunks, which come first
    places = torch.from_numpy(found.indices[found.chunks == first])
    optimizer.apply(1, [], learning_rate=RATE, own_accepted=True)
    after = basis.T @ optimizer.delta["w"].double()[:64, :64] @ basis
    left = (after.flatten()[places] / before.flatten()[places]).abs()
    assert float(left.max()) < 2**-7
    other = torch.ones(4096, dtype=torch.bool)
    other[places] = False
    torch.testing.assert_close(after.flatten()[other], before.flatten()[other], rtol=0, atol=1e-5)


def test_bfloat16_is_for_cpus_that_multiply_it_and_results_that_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, other = torch.device("cpu"), torch.device("meta")
    for able in (True, False):
        monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda able=able: able)
        large = torch.bfloat16 if able else torch.float32
        assert precision_for(ValueFormat.SIGNS, cpu).of(MIN_ELEMENTS) == large
        assert precision_for(ValueFormat.BFLOAT16, cpu).of(MIN_ELEMENTS) == large
        assert precision_for(ValueFormat.SIGNS, cpu).of(MIN_ELEMENTS - 1) == torch.float32
        assert precision_for(ValueFormat.FLOAT32, cpu).of(MIN_ELEMENTS) == torch.float32
        assert precision_for(ValueFormat.SIGNS, other).of(MIN_ELEMENTS) == torch.float32


@pytest.mark.parametrize(
    ("known", "able"), [({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({"avx512_bf16": False}, False), ({}, False)]
)
def test_the_cpu_is_asked_what_it_can(monkeypatch: pytest.MonkeyPatch, known: dict[str, bool], able: bool) -> None:
    monkeypatch.setattr(torch, "cpu", SimpleNamespace(get_capabilities=lambda: known))
    assert cpu_has_bfloat16() is (able and torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]  # torch leaves it untyped
    monkeypatch.setattr(torch, "cpu", SimpleNamespace())
    assert cpu_has_bfloat16() is False
