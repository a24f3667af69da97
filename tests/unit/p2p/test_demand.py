"""How many results come at once, and how many requests wait, follows what our own line carries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psyche_core.p2p.demand import BUSY_SECONDS, FIRST_BYTES, FULL_SECONDS, QUICK_SECONDS, SPARE_SECONDS, WIDENED_SECONDS, Demand
from psyche_core.p2p.downloads import AT_ONCE, MOST_AT_ONCE, at_once_of
from psyche_core.p2p.patience import TRIES, Line


def carried(line: Line, rate: float, *, now: float = 0.0, received: int = 0, seconds: int = 6) -> tuple[float, int]:
    """Let so many bytes a second come. Returns the time and what came."""
    for _ in range(2 * seconds):
        line.look(received, now)
        now += 0.5
        received += int(rate * 0.5)
    line.look(received, now)
    return now, received


def full(rate: float) -> Line:
    line = Line(over=3.0)
    carried(line, rate)
    for _ in range(TRIES):
        line.tried()
    return line


def test_it_begins_with_two_and_each_result_that_came_quickly_allows_one_more() -> None:
    demand = Demand(Line(over=3.0))
    demand.expect_size(54_000)
    assert demand.places == AT_ONCE
    for number in range(2 * MOST_AT_ONCE):
        assert demand.places == min(AT_ONCE + number, MOST_AT_ONCE)
        demand.completed(QUICK_SECONDS, 0.0)
    demand.expect_size(22_000_000)
    assert demand.places == at_once_of(22_000_000)
    demand.expect_size(54_000)
    assert demand.places == MOST_AT_ONCE, "what was small before is small again"


def test_results_that_come_slowly_allow_more_as_long_as_that_may_bring_more() -> None:
    line = Line(over=3.0)
    demand = Demand(line)
    demand.expect_size(54_000)
    now, received = carried(line, 50_000.0)
    for _ in range(10):
        now += QUICK_SECONDS
        demand.completed(2.0, now)
    assert line.full
    assert demand.places == AT_ONCE, "the tries brought no more"
    for rate in (100_000.0, 200_000.0, 400_000.0):
        now, received = carried(line, rate, now=now, received=received)
        for _ in range(TRIES - 1):
            now += QUICK_SECONDS
            demand.completed(2.0, now)
    assert demand.places > 2 * AT_ONCE, "each time they did"


@given(rate=st.floats(1e3, 1e8), size=st.integers(1, 10**8))
def test_on_a_full_line_as_many_come_at_once_as_it_carries_in_a_short_time(rate: float, size: int) -> None:
    demand = Demand(full(rate))
    demand.expect_size(size)
    demand.completed(2.0, 100.0)
    assert AT_ONCE <= demand.places <= at_once_of(size)
    assert demand.places == AT_ONCE or demand.places * size <= rate * FULL_SECONDS * 1.01


@given(rate=st.floats(1e3, 1e8))
def test_what_holders_send_in_vain_is_little_for_the_line(rate: float) -> None:
    demand = Demand(full(rate))
    demand.expect_size(22_000_000)
    assert demand.spare * FIRST_BYTES <= rate * SPARE_SECONDS * 1.01


def test_ever_more_requests_wait_while_holders_are_busy_until_one_finds_no_place() -> None:
    demand = Demand(Line(over=3.0))
    now, spare = 100.0, [demand.spare]
    for _ in range(20):
        assert not demand.widen(now, busy=False) or len(spare) == 1
        now += WIDENED_SECONDS
        demand.widen(now, busy=False)
        spare.append(demand.spare)
    assert spare == sorted(spare)
    assert spare[8] > 100
    demand.answered(now, needed=True)
    assert demand.spare == spare[-1]
    demand.answered(now, needed=False)
    assert demand.spare == 0
    assert not demand.widen(now + BUSY_SECONDS / 2, busy=True), "what comes may fill the line"
    assert demand.widen(now + BUSY_SECONDS, busy=True)
