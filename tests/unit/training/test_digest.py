from __future__ import annotations

import pytest
import torch
from blake3 import blake3

from psyche_core.training.digest import PIECE, full_digest


def masters() -> dict[str, torch.Tensor]:
    """Many small tensors, one of several pieces, one that ends in a part of a piece."""
    generator = torch.Generator().manual_seed(0)
    shapes = {f"norm.{index}": (64,) for index in range(40)}
    table = {**shapes, "embed": (3, PIECE), "head": (PIECE // 8, 10), "z": (3, 1000)}
    return {name: torch.randn(shape, generator=generator) for name, shape in sorted(table.items())}


def test_equal_masters_have_equal_digests_whatever_the_order_of_the_mapping() -> None:
    assert full_digest(masters()) == full_digest(dict(reversed(masters().items())))


@pytest.mark.parametrize("change", ["bit", "last piece", "sign of zero", "shape", "name", "order of pieces"])
def test_every_change_is_seen(change: str) -> None:
    table = masters()
    table["head"][5, 5] = 0.0
    before = full_digest(table)
    if change == "bit":
        table["z"][2, 999] = torch.nextafter(table["z"][2, 999], torch.tensor(9.0))
    elif change == "last piece":
        table["embed"][2, -1] += 1
    elif change == "sign of zero":
        table["head"][5, 5] = -0.0
    elif change == "shape":
        table["z"] = table["z"].view(1000, 3)
    elif change == "order of pieces":
        table["embed"] = table["embed"].flip(0)
    else:
        table["y"] = table.pop("z")
    assert full_digest(table) != before


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_number_of_threads_does_not_matter(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = full_digest(masters())
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert full_digest(masters()) == before


def test_of_a_model_without_parameters_the_tag_is_left() -> None:
    assert full_digest({}) == blake3(b"psyche/model-digest/2").digest()


def test_other_types_than_float32_are_a_programming_error() -> None:
    with pytest.raises(TypeError, match="float32"):
        full_digest({"w": torch.zeros(3, dtype=torch.bfloat16)})
