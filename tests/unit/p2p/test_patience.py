"""A fetch goes on while bytes come fast enough, and what is fast enough follows what came before."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from psyche_core.p2p.patience import LAGS, REMEMBERED, SLOWER, Course, Pace, Patience

LEAST = 8192.0
TIMEOUT = 30.0


def waited(rate: float, *, least: float, until: float) -> float:
    """Seconds until a fetch is given up to which so many bytes a second come; `until` if it is not."""
    patience, now = Patience(TIMEOUT, now=0.0, least=least), 0.0
    while now < until and patience.left(now) > 0:
        now += 1.0
        patience.note(int(rate), now)
    return now


@given(rate=st.integers(int(LEAST) + 1, 10**9))
def test_what_comes_fast_enough_is_never_given_up(rate: int) -> None:
    assert waited(rate, least=LEAST, until=600.0) == 600.0


@given(rate=st.integers(0, int(LEAST) - 1))
def test_what_comes_too_slowly_is_given_up_after_the_timeout(rate: int) -> None:
    assert waited(rate, least=LEAST, until=600.0) == TIMEOUT


def test_the_wait_begins_anew_with_the_last_progress() -> None:
    patience = Patience(TIMEOUT, now=0.0, least=LEAST)
    patience.note(300_000, 29.0)
    assert patience.left(29.0) == TIMEOUT
    assert patience.left(58.0) == 1.0
    assert patience.left(60.0) == 0.0


def test_many_large_results_on_one_line_are_waited_for() -> None:
    """63 results of 22 MB take 111 s at 100 Mbit/s; the last one begins after 109 s."""
    line = 12_500_000
    assert 63 * 22_000_000 / line > 3 * TIMEOUT
    assert waited(line, least=LEAST, until=111.0) == 111.0


def test_without_a_rate_the_timeout_is_one_for_all() -> None:
    patience = Patience(TIMEOUT, now=5.0)
    patience.note(10**12, 34.0)
    assert patience.left(34.0) == 1.0
    assert patience.left(40.0) == 0.0


def test_a_timeout_of_nothing_is_over_at_once() -> None:
    assert Patience(0.0, now=1.0, least=LEAST).left(1.0) == 0.0
    assert Patience(0.0, now=1.0).left(1.0) == 0.0


def test_a_source_may_be_some_times_slower_than_usual_and_never_below_the_floor() -> None:
    pace = Pace(LEAST)
    assert pace.least == LEAST
    pace.completed(22_000_000, 2.0)
    assert pace.least == 11_000_000 / SLOWER
    slow = Pace(LEAST)
    slow.completed(10_000, 2.0)
    assert slow.least == LEAST


def test_a_few_very_fast_blobs_do_not_make_others_too_slow() -> None:
    pace = Pace(LEAST)
    for _ in range(REMEMBERED):
        pace.completed(1_600_000, 1.0)
    for _ in range(REMEMBERED // 2):
        pace.completed(10**9, 0.0)
    assert pace.least == 1_600_000 / SLOWER


def test_a_course_is_measured_between_looks_and_anew_after_starting_over() -> None:
    course = Course(0.0, size=1000)
    course.received = 100
    course.look(1.9, every=2.0)
    assert (course.looks, course.rest) == (0, math.inf), "too early"
    course.look(2.0, every=2.0)
    assert (course.looks, course.rate, course.rest) == (1, 50.0, 18.0)
    course.received = 400
    course.start_over(3.0)
    assert course.looks == 0
    course.received = 600
    course.look(5.0, every=2.0)
    assert (course.looks, course.rate, course.rest) == (1, 100.0, 4.0)
    course.received = 1000
    assert course.rest == 0.0


def test_a_source_lags_that_needs_longer_for_the_rest_than_usual_for_the_whole_some_times() -> None:
    pace = Pace(LEAST)
    assert pace.longest(5_000_000, TIMEOUT) == TIMEOUT / LAGS
    for seconds in (5.0, 5.0, 500.0):
        pace.completed(5_000_000, seconds)
    assert pace.longest(5_000_000, TIMEOUT) == 5.0 * LAGS
