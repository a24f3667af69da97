"""When events of a finished run are played again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.observer.replay_timing import paced
from psyche_core.telemetry.event_files import SourcedEvent
from psyche_core.telemetry.events import Joined, StepTrained


def at(time: float, step: int | None = None) -> SourcedEvent:
    return SourcedEvent(time, "client-1", Joined("run") if step is None else StepTrained(0, step, 3.0, 1, 1.0, 1))


def moments(
    events: list[SourcedEvent], *, speed: float = 10.0, max_pause: float = 5.0, from_step: int | None = None
) -> list[float]:
    return [moment for moment, _ in paced(events, speed=speed, max_pause=max_pause, from_step=from_step)]


def test_a_run_is_played_at_a_multiple_of_its_speed() -> None:
    assert moments([at(100), at(110), at(130)]) == pytest.approx([0, 1, 3])
    assert moments([at(100), at(110)], speed=0) == [0, 0]


def test_pauses_are_cut() -> None:
    assert moments([at(0), at(86400), at(86410)]) == pytest.approx([0, 5, 6])


def test_what_comes_before_the_first_step_is_played_at_once() -> None:
    events = [at(0), at(100, 1), at(200, 2), at(300, 3), at(310)]
    assert moments(events, from_step=2) == pytest.approx([0, 0, 5, 10, 11])


def test_a_clock_that_goes_back_holds_nobody_up() -> None:
    assert moments([at(100), at(50), at(110)]) == pytest.approx([0, 0, 1])


@given(times=st.lists(st.floats(0, 1e9)), speed=st.floats(0, 1e6), max_pause=st.floats(0, 60))
def test_moments_never_go_back_and_no_wait_is_too_long(times: list[float], speed: float, max_pause: float) -> None:
    found = moments([at(time) for time in times], speed=speed, max_pause=max_pause)
    waits = [later - earlier for earlier, later in itertools.pairwise(found)]
    assert all(-1e-6 <= wait <= max_pause + 1e-6 for wait in waits)
