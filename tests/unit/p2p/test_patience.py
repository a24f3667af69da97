"""A fetch goes on while bytes come fast enough, and what is fast enough follows what came before."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from psyche_core.p2p.patience import LAGS, SLOWER, TRIES, VOICES, Course, Line, Pace, Patience

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


def known(rates: list[float], size: int = 22_000_000) -> Pace:
    """What is usual after so many peers have sent one result each, with these bytes a second."""
    pace = Pace(LEAST)
    for number, rate in enumerate(rates):
        pace.completed(b"%d" % number, size, size / rate)
    return pace


def test_a_source_may_be_some_times_slower_than_usual_and_never_below_the_floor() -> None:
    assert known([]).least == LEAST
    assert known([11e6] * VOICES).least == 11e6 / SLOWER
    assert known([20_000.0] * VOICES).least == LEAST


def test_few_peers_do_not_say_what_is_usual_but_those_of_the_epoch_before_do() -> None:
    pace = known([11e6] * (VOICES - 1))
    assert pace.usual is None
    pace = known([11e6] * VOICES)
    pace.begin_epoch()
    pace.completed(b"fast", 22_000_000, 1.0)
    assert pace.usual == 11e6
    for number in range(VOICES):
        pace.completed(b"%d" % number, 22_000_000, 22.0)
    assert pace.usual == 1e6


HONEST = st.lists(st.floats(1e5, 1e7), min_size=VOICES, max_size=12)


@given(rates=HONEST, results=st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10**8), st.floats(0.0, 1e4)), max_size=60))
def test_fewer_than_half_of_the_peers_decide_nothing_however_much_they_send(
    rates: list[float], results: list[tuple[int, int, float]]
) -> None:
    """Whatever they send, and how fast, what is usual stays among what honest peers sent with."""
    pace = known(rates)
    for peer, size, seconds in results:
        pace.completed(b"false %d" % (peer % max(1, (len(rates) - 1) // 2)), size, seconds)
    assert pace.usual is not None
    assert min(rates) * 0.999 <= pace.usual <= max(rates) * 1.001


def test_small_results_and_bursts_tell_little() -> None:
    """Nine results of 400 kB in a burst made honest lines of 1.5 MB/s count as too slow."""
    pace = Pace(LEAST)
    for number in range(VOICES):
        pace.completed(b"%d" % number, 400_000, 0.001)
    assert pace.least <= 1.5e6 / 4
    small = Pace(LEAST)
    for number in range(VOICES):
        small.completed(b"%d" % number, 10_000, 0.001)
    assert small.usual is None


def slowest(pace: Pace, size: int) -> float:
    """Seconds that a source takes that always sends as slowly as it may without lagging."""
    course, now, every = Course(0.0, size=size), 0.0, 0.5
    longest = pace.longest(size, TIMEOUT)
    while course.received < size and now < 10_000:
        needed = (size - course.received) / max(3.0, longest - now)
        course.received += int(max(needed, pace.least) * every) + 1
        now += every
        course.look(now, every=every)
        assert not pace.lags(course, now=now, timeout=TIMEOUT, least=3.5)
    return now


def test_who_sends_as_slowly_as_it_may_does_not_make_that_usual() -> None:
    """The times of nine such peers grew without end; now each is bounded by what honest peers need."""
    size = 22_000_000
    pace = known([6e6] * 10, size)
    for number in range(40):
        pace.completed(b"false %d" % (number % 9), size, slowest(pace, size))
    assert slowest(pace, size) < 2 * LAGS * size / 6e6 + 10
    alone = Pace(LEAST)
    for number in range(40):
        alone.completed(b"false %d" % (number % VOICES), size, slowest(alone, size))
    assert slowest(alone, size) < 10 * TIMEOUT


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


def test_a_source_lags_that_needs_longer_than_usual_some_times() -> None:
    assert Pace(LEAST).longest(5_000_000, TIMEOUT) == TIMEOUT / LAGS
    assert known([1e6, 1e6, 1e4]).longest(5_000_000, TIMEOUT) == 5.0 * LAGS


@given(rate=st.floats(1e3, 1e7), sources=st.integers(2, 40))
def test_who_sends_its_share_of_a_line_is_never_too_slow_and_who_sends_much_less_is(rate: float, sources: int) -> None:
    """Each of 16 sources had to send 8 kB a second, which a line of 100 kB a second could not carry."""
    line, pace = Line(over=3.0), known([1e8] * VOICES)
    carried(line, [rate, rate])
    share = line.share(sources)
    assert share is not None
    course = Course(0.0, size=10_000_000)
    course.received = int(share * 20.0) + 1
    course.look(20.0, every=20.0)
    assert course.rate >= pace.least_of(sources, share) or share < LEAST / sources
    assert not course.is_behind(share, 20.0)
    course.received = int(share * 20.0 / (LAGS + 1))
    assert Course(0.0, received=course.received).is_behind(share, 20.0)
    assert pace.least_of(sources, 0.0) == LEAST / sources, "their part of the floor must come from all"


def test_one_source_alone_is_excused_by_a_full_line_only_and_none_by_a_line_with_room() -> None:
    line, pace = Line(over=3.0), Pace(LEAST)
    now, received = carried(line, [1e6, 1e6])
    assert line.share(1) is None
    assert line.share(2) == 5e5
    allowed = []
    for _ in range(TRIES):
        allowed.append(line.may_try)
        line.tried()
    assert line.full
    assert line.share(1) == 1e6
    allowed.append(line.may_try)
    now, received = carried(line, [1e6] * 7, now=now, received=received)
    allowed.append(line.may_try)
    assert allowed == [True] * TRIES + [False, True], "one more after some time"
    carried(line, [4e5, 4e5], now=now, received=received)
    assert line.idle
    assert line.share(2) is None
    assert pace.least_of(2, None) == pace.least == LEAST


def test_what_a_source_needed_until_now_counts_too() -> None:
    """Else one that slows down more and more would never lag."""
    pace = known([1e6] * VOICES)
    course = Course(0.0, size=10_000_000)
    course.received = 5_000_000
    course.look(20.0, every=20.0)
    assert course.rest == 20.0
    assert not pace.lags(course, now=20.0, timeout=TIMEOUT, least=3.0)
    assert pace.lags(course, now=20.1, timeout=TIMEOUT, least=3.0)
    assert not pace.lags(course, now=20.1, timeout=TIMEOUT, least=20.0)


# ------------------------------------------------------------------------------------------------------------- our line
def carried(line: Line, rates: list[float], *, now: float = 0.0, received: int = 0) -> tuple[float, int]:
    """Let so many bytes a second come, each for three seconds. Returns the time and what came."""
    for rate in rates:
        for _ in range(6):
            line.look(received, now)
            now += 0.5
            received += int(rate * 0.5)
        line.look(received, now)
    return now, received


def test_a_line_that_is_not_known_has_room_for_a_few_tries() -> None:
    line = Line(over=3.0)
    carried(line, [1e6, 1e6])
    for _ in range(TRIES):
        assert line.room
        line.tried()
    assert not line.room


@given(best=st.floats(1e5, 1e8), part=st.floats(0.0, 0.7), tries=st.integers(0, 3 * TRIES))
def test_where_much_less_comes_than_the_line_has_carried_there_is_room_whatever_was_tried(
    best: float, part: float, tries: int
) -> None:
    line = Line(over=3.0)
    now, received = carried(line, [best, best])
    for _ in range(tries):
        line.tried()
    carried(line, [best * part, best * part], now=now, received=received)
    assert line.room


@given(best=st.floats(1e5, 1e8), parts=st.lists(st.floats(0.8, 1.0), max_size=10))
def test_a_full_line_has_no_room_after_a_few_tries(best: float, parts: list[float]) -> None:
    line = Line(over=3.0)
    now, received = carried(line, [best, best])
    for _ in range(TRIES):
        line.tried()
    carried(line, [part * best for part in parts], now=now, received=received)
    assert not line.room


def test_tries_that_bring_more_allow_further_ones() -> None:
    line = Line(over=3.0)
    now, received = carried(line, [28_000.0, 28_000.0])
    for _ in range(TRIES):
        line.tried()
    assert not line.room
    carried(line, [56_000.0, 56_000.0], now=now, received=received)
    assert line.room


def test_where_other_sources_do_not_help_what_a_line_once_carried_is_forgotten() -> None:
    line = Line(over=3.0)
    now, received = carried(line, [1e7, 1e7])
    for _ in range(TRIES):
        line.tried()
    now, received = carried(line, [1e6, 1e6], now=now, received=received)
    for stops in range(20):  # noqa: B007
        if not line.room:
            break

        line.stopped()
    assert 5 <= stops <= 10


def test_idle_time_neither_counts_as_slow_nor_makes_a_line_forget() -> None:
    line = Line(over=3.0)
    now, received = carried(line, [1e7, 1e7])
    for _ in range(TRIES):
        line.tried()
    now += 3600.0
    for _ in range(3):
        line.look(received, now)
        assert not line.room
        now, received = now + 0.5, received + 5_000_000
    carried(line, [5e6, 5e6], now=now, received=received)
    assert line.room
