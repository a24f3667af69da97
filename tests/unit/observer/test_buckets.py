"""Series of bounded size: whatever comes in whatever order, no extreme and no weight is lost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.observer.buckets import MAX_KEY, BucketSeries

POINTS = st.lists(
    st.tuples(st.integers(0, 5000), st.floats(-100, 100), st.floats(0.5, 10)), min_size=1, max_size=200
)  # (key, value, weight)


@given(points=POINTS, capacity=st.integers(2, 30))
def test_no_extreme_and_no_weight_is_lost(points: list[tuple[int, float, float]], capacity: int) -> None:
    series = BucketSeries(capacity)
    for version, (key, value, weight) in enumerate(points, start=1):
        series.add(key, value, time=float(version), changed=version, weight=weight)
    rows = list(series.rows())
    assert len(rows) == len(series) <= capacity
    starts = [row.start for row in rows]
    assert starts == sorted(set(starts))
    assert all(start % series.width == 0 for start in starts)
    for row in rows:
        inside = [(value, weight) for key, value, weight in points if row.start <= key < row.start + series.width]
        assert (row.low, row.high) == (min(value for value, _ in inside), max(value for value, _ in inside))
        assert row.weight == pytest.approx(sum(weight for _, weight in inside))
        mean = sum(value * weight for value, weight in inside) / sum(weight for _, weight in inside)
        assert row.mean == pytest.approx(mean, abs=1e-9)
    newest = series.newest
    assert newest is not None
    assert newest.start == starts[-1]


@given(points=POINTS, capacity=st.integers(2, 30), data=st.data())
def test_a_reader_that_is_sent_only_changes_has_what_a_new_reader_gets(
    points: list[tuple[int, float, float]], capacity: int, data: st.DataObject
) -> None:
    series = BucketSeries(capacity)
    known: dict[int, float | None] = {}
    version = seen = 0

    def read() -> None:
        nonlocal seen
        if series.reshaped > seen:
            known.clear()
        known.update({row.start: row.mean for row in series.rows(since=seen)})
        seen = version

    for key, value, weight in points:
        version += 1
        series.add(key, value, time=0.0, changed=version, weight=weight)
        if data.draw(st.booleans()):
            read()
        if data.draw(st.integers(0, 20)) == 0:
            version += 1
            series.cut(key, changed=version)
    read()
    assert known == {row.start: row.mean for row in series.rows()}


def test_what_is_not_finite_counts_as_trained_and_bends_no_curve() -> None:
    series = BucketSeries(4)
    series.add(1, math.nan, time=1.0, changed=1, weight=8)
    assert [(row.mean, row.low, row.weight) for row in series.rows()] == [(None, None, 8)]
    series.add(1, 3.0, time=1.0, changed=2, weight=8)
    assert [(row.mean, row.high, row.weight) for row in series.rows()] == [(3.0, 3.0, 16)]


@pytest.mark.parametrize("key", [-1, MAX_KEY])
def test_a_key_that_no_run_reaches_is_ignored(key: int) -> None:
    series = BucketSeries(4)
    series.add(key, 1.0, time=0.0, changed=1)
    assert len(series) == 0


def test_a_series_without_room_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        BucketSeries(1)
