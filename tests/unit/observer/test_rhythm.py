"""A run whose programs were killed falls silent; one that merely takes its time, rests or has ended does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psyche_core.observer.documents import head
from psyche_core.observer.rhythm import LEAST_SECONDS, LONGEST_WAIT
from psyche_core.observer.run_view import RunView
from psyche_core.telemetry import events as telemetry
from psyche_core.testing.backend import small_state
from psyche_core.types import RunState


def phase(name: str = "RoundTrain", *, step: int = 1) -> telemetry.PhaseChanged:
    return telemetry.PhaseChanged(name, 0, step, 0, 3)


def training(*times: float) -> RunView:
    """A run whose server told of a phase at these times."""
    view = RunView()
    view.handle("server", times[0], telemetry.Started("server", "ff" * 32, "first-light", "127.0.0.1:1", 100))
    for time in times:
        view.handle("server", time, phase())
    return view


def test_a_run_whose_programs_were_killed_is_silent_until_something_comes() -> None:
    view = training(0.0, 1.0, 2.0)
    assert not view.look(2 + LEAST_SECONDS)
    assert not head(view)["silent"]
    version = view.version
    assert view.look(3 + LEAST_SECONDS)
    assert view.version > version, "pages are sent what changed since a version"
    assert not view.look(4 + LEAST_SECONDS), "it is told once"
    assert (head(view)["silent"], head(view)["newest"]) == (True, 2.0)
    view.handle("server", 500.0, phase(step=2))
    assert not head(view)["silent"]


def test_a_run_may_take_twice_its_longest_wait() -> None:
    view = training(0.0, 600.0)
    assert not view.look(600 + 1200)
    assert view.look(601 + 1200)


def test_the_time_in_which_programs_were_away_is_not_taken_for_their_rhythm() -> None:
    view = training(0.0, 1.0, LONGEST_WAIT + 2)
    assert view.look(LONGEST_WAIT + 3 + LEAST_SECONDS)


def test_events_of_several_files_that_come_out_of_order_make_no_wait_longer() -> None:
    view = training(0.0, 400.0, 1.0, 399.0)
    assert not view.look(400 + 800)
    assert view.look(401 + 800)


@pytest.mark.parametrize("name", ["WaitingForMembers", "Paused"])
def test_a_run_may_rest_for_as_long_as_people_want(name: str) -> None:
    view = training(0.0)
    view.handle("server", 1.0, phase(name))
    assert not view.look(1e9)


def test_a_run_that_ended_is_not_silent() -> None:
    view = training(0.0)
    view.handle("server", 1.0, telemetry.Ended("the run finished after 100 steps", success=True))
    assert not view.look(1e9)


def test_limits_of_a_coordinators_state_go_before_what_was_seen() -> None:
    state = small_state()
    changed = {"warmup_time": 10, "cooldown_time": 5, "max_round_train_time": 290, "round_witness_time": 10}
    config = state.config.model_copy(update=changed)
    state = replace(state, config=config, run_state=RunState.RoundTrain)
    view = RunView()
    view.follow(0.0, state)
    view.follow(1.0, replace(state, run_state=RunState.RoundWitness))
    assert not view.look(1 + 600)
    assert view.look(2 + 600)


def test_a_view_of_nothing_is_not_silent() -> None:
    assert not RunView().look(1e9)
