"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.ui.formatting import bytes_text, count_text, duration_text, sparkline


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_345, "12.3 kB"), (4e6, "4.0 MB"), (7.5e9, "7.5 GB"), (2e12, "2.0 TB")],
)
def test_bytes(count: float, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (950, "950"), (12_345, "12.3 k"), (1_060_000, "1.06 M"), (7e9, "7.00 G")])
def test_counts(count: float, text: str) -> None:
    assert count_text(count) == text


def test_sparkline_goes_from_least_to_greatest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([8, 8, 1, 1], 2) == "█▁"


def test_sparkline_of_equal_values_is_flat_and_of_none_is_empty() -> None:
    assert sparkline([3, 3, 3], 10) == "▁▁▁"
    assert sparkline([], 10) == ""
    assert sparkline([math.nan, math.inf], 10) == ""


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=60), st.integers(0, 20))
def test_sparkline_never_fails_and_keeps_its_width(values: list[float], width: int) -> None:
    finite = sum(map(math.isfinite, values))
    assert len(sparkline(values, width)) == min(width, finite)
