"""Two bits a value: which levels there are, which are chosen, and that all sums are exact."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from psyche_core.types import MAX_CLIENTS
from psyche_optim_sparseloco.quantizer import LEVELS, SMALLEST_SENT, UNIT, quantize


def test_levels_are_the_same_integers_on_every_machine() -> None:
    """They are a part of the format: another table needs another version."""
    assert hashlib.sha256(LEVELS.astype("<i4").tobytes()).hexdigest()[:16] == "044a5f47bd7f3fdc"
    assert (LEVELS[0], LEVELS[-1], LEVELS.size) == (16, UNIT, 193)
    assert bool((np.diff(LEVELS) >= 0).all()), "the lowest steps are less than a unit apart"
    wanted = 2.0 ** (4 + np.arange(193) / 16)
    assert np.abs(LEVELS - wanted).max() <= 0.5


def test_256_largest_values_fit_into_int32_and_each_mean_into_float32() -> None:
    assert MAX_CLIENTS * UNIT < 2**31
    assert UNIT < 2**24


def test_two_magnitudes_in_a_chunk_are_kept_to_a_step_of_the_scale() -> None:
    values = np.array([100.0, -100.0, 3000.0, -3000.0, 100.0, 50000.0])
    counts = np.array([5, 1])
    got = quantize(values, counts).amounts(counts)
    assert np.sign(got).tolist() == np.sign(values).tolist()
    assert np.abs(got / values - 1).max() < 0.035
    assert len(set(np.abs(got[:5]).tolist())) == 2


@pytest.mark.parametrize("value", [SMALLEST_SENT, 16.0, 1e3 / 3, 65536.0, 1e9])
def test_equal_values_get_one_level_and_large_ones_the_largest(value: float) -> None:
    counts = np.array([7])
    got = quantize(np.full(7, -value), counts).amounts(counts)
    assert len(set(got.tolist())) == 1
    assert -got[0] == pytest.approx(min(max(value, 16.0), UNIT), rel=0.035)


def test_each_value_gets_the_nearer_level_of_its_chunk() -> None:
    rng = np.random.default_rng(3)
    counts = rng.integers(1, 40, 50)
    values = rng.standard_normal(int(counts.sum())) * np.repeat(rng.uniform(50, 20000, 50), counts)
    values = np.copysign(np.maximum(np.abs(values), SMALLEST_SENT), values)
    quantized = quantize(values, counts)
    got, levels = quantized.amounts(counts), LEVELS[quantized.codes].repeat(counts, axis=0)
    assert np.abs(np.abs(got) - np.abs(values)) == pytest.approx(np.abs(np.abs(values)[:, None] - levels).min(axis=1))
    assert bool((quantized.codes[:, 0] <= quantized.codes[:, 1]).all())


def test_nothing_is_nothing() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert quantize(np.zeros(0), none).amounts(none).size == 0
