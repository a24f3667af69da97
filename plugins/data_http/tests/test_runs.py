"""Joining wanted sequences to requests."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from psyche_data_http.fetch.range_plan import Run, joined

PLACES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), unique=True).map(sorted)


def joined_with_ranges(places: list[tuple[int, int]], **limits: int) -> list[Run]:
    return joined(places, serves_ranges=lambda file: True, **limits)


@given(places=PLACES, size=st.integers(1, 50), gap=st.integers(0, 300), longest=st.integers(1, 500))
def test_runs_have_every_place_once_in_order_and_keep_the_limits(
    places: list[tuple[int, int]], size: int, gap: int, longest: int
) -> None:
    runs = joined_with_ranges(places, size=size, gap=gap, longest=longest)

    assert [place for run in runs for place in run.places] == places
    for run in runs:
        assert {file for file, _ in run.places} == {run.file}
        assert run.count * size <= max(longest, size)
        numbers = [number for _, number in run.places]
        assert all((later - earlier - 1) * size <= gap for earlier, later in pairwise(numbers))


@given(places=PLACES, size=st.integers(1, 50), gap=st.integers(0, 300), longest=st.integers(1, 500))
def test_no_two_neighbouring_runs_could_have_been_one(places: list[tuple[int, int]], size: int, gap: int, longest: int) -> None:
    runs = joined_with_ranges(places, size=size, gap=gap, longest=longest)

    for one, next_one in pairwise(runs):
        together = next_one.first - one.first + 1
        between = (next_one.first - one.first - one.count) * size
        assert one.file != next_one.file or between > gap or together * size > longest


def test_a_file_that_comes_whole_is_one_run() -> None:
    places = [(0, 0), (0, 10**9), (1, 0), (1, 10**9)]

    runs = joined(places, size=1000, serves_ranges=lambda file: file != 1)

    assert runs == [Run(((0, 0),)), Run(((0, 10**9),)), Run(((1, 0), (1, 10**9)))]
