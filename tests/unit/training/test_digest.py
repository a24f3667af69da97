from __future__ import annotations

import pytest
import torch

from psyche_core.training import digest
from psyche_core.training.digest import BLOCK, STRIDE, full_digest, sampled_digest


def masters() -> dict[str, torch.Tensor]:
    """About 250 blocks: many tensors of less than a block, a large one, one that ends in a part of a block."""
    generator = torch.Generator().manual_seed(0)
    shapes = {f"norm.{index}": (64,) for index in range(40)}
    table = {**shapes, "embed": (200, BLOCK), "head": (BLOCK, 10), "z": (3, 1000)}
    return {name: torch.randn(shape, generator=generator) for name, shape in sorted(table.items())}


def test_equal_masters_have_equal_digests_whatever_the_order_of_the_mapping() -> None:
    first, second = masters(), dict(reversed(masters().items()))
    assert full_digest(first) == full_digest(second)
    assert sampled_digest(first, 7) == sampled_digest(second, 7)


@pytest.mark.parametrize("change", ["bit", "sign of zero", "shape", "name"])
def test_full_digest_sees_every_change(change: str) -> None:
    table = masters()
    table["head"][5, 5] = 0.0
    before = full_digest(table)
    if change == "bit":
        table["z"][2, 999] = torch.nextafter(table["z"][2, 999], torch.tensor(9.0))
    elif change == "sign of zero":
        table["head"][5, 5] = -0.0
    elif change == "shape":
        table["z"] = table["z"].view(1000, 3)
    else:
        table["y"] = table.pop("z")
    assert full_digest(table) != before


def test_sample_depends_on_its_seed() -> None:
    assert len({sampled_digest(masters(), seed) for seed in (0, 1, 2**64 - 1)}) == 3


def test_sample_sees_a_change_of_shape_or_name_always() -> None:
    table = masters()
    before = sampled_digest(table, 3)
    table["z"] = table["z"].view(1000, 3)
    assert sampled_digest(table, 3) != before


def test_sample_sees_a_drift_of_everything_at_once() -> None:
    table = masters()
    drifted = {name: tensor + 1e-3 for name, tensor in table.items()}
    assert all(sampled_digest(table, seed) != sampled_digest(drifted, seed) for seed in range(10))


def test_every_block_is_read_by_some_seed_and_few_by_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single wrong block of a large model is caught by about one seed in 100, wherever it lies."""
    monkeypatch.setattr(digest, "LEAST", 1)
    table = masters()
    plain = [sampled_digest(table, seed) for seed in range(1000)]
    for name, index in [("embed", (0, 0)), ("embed", (199, BLOCK - 1)), ("head", (100, 0)), ("norm.17", (63,))]:
        changed = dict(table)
        changed[name] = table[name].clone()
        changed[name][index] += 1
        caught = sum(sampled_digest(changed, seed) != plain[seed] for seed in range(1000))
        assert 1000 / STRIDE / 4 < caught < 1000 / STRIDE * 4, (name, caught)


def test_of_a_small_model_every_value_is_read_every_time() -> None:
    """One flipped bit of a demo's model is noticed in the next round, not in one of a hundred."""
    table = {"embed": torch.zeros(100, BLOCK), "norm": torch.zeros(64)}
    for name, tensor in table.items():
        for place in (0, tensor.numel() // 2, tensor.numel() - 1):
            changed = {**table, name: tensor.clone()}
            changed[name].view(-1)[place] = 1e-30
            assert all(sampled_digest(changed, seed) != sampled_digest(table, seed) for seed in range(5))


def test_small_model_is_sampled_too() -> None:
    table = {"w": torch.zeros(10)}
    before = sampled_digest(table, 0)
    table["w"][9] = 1
    assert sampled_digest(table, 0) != before


def test_other_types_than_float32_are_a_programming_error() -> None:
    with pytest.raises(TypeError, match="float32"):
        full_digest({"w": torch.zeros(3, dtype=torch.bfloat16)})
