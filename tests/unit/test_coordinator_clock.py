"""A coordinator's clock goes on evenly, whatever is done to the machine's clock."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from psyche_core.builtin.memory_backend import MemoryCoordinator
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.coordinator_clock import CoordinatorClock
from psyche_core.testing.backend import START_TIME, small_state
from psyche_core.types import RunState

HOUR = 3600


class Machine:
    """A machine's two clocks, at hand."""

    def __init__(self) -> None:
        self.wall, self.up = START_TIME + 100.0, 50.0

    def passes(self, seconds: float) -> None:
        self.wall, self.up = self.wall + seconds, self.up + seconds


@pytest.mark.parametrize("change", [-HOUR, HOUR])
def test_a_clock_that_is_set_changes_nothing(change: int) -> None:
    machine = Machine()
    clock = CoordinatorClock(small_state(), wall=lambda: machine.wall, monotonic=lambda: machine.up)
    assert clock() == START_TIME + 100
    machine.passes(7)
    machine.wall += change
    assert clock() == START_TIME + 107
    machine.passes(0.5)
    assert clock() == START_TIME + 107.5


LATER = START_TIME + HOUR


@pytest.mark.parametrize(
    "state",
    [
        replace(small_state(), since=LATER),
        replace(small_state(), minimum_since=LATER),
        replace(small_state(), epoch=replace(small_state().epoch, ready_since=LATER)),
    ],
    ids=["since", "minimum_since", "ready_since"],
)
def test_it_starts_at_the_newest_time_of_a_state_from_the_future(state: CoordinatorState) -> None:
    """The machine's clock was set back while the server was away."""
    machine = Machine()
    clock = CoordinatorClock(state, wall=lambda: machine.wall, monotonic=lambda: machine.up)
    machine.passes(3)
    assert clock() == LATER + 3


def test_a_phase_lasts_as_long_as_it_should_when_the_clock_is_set_back() -> None:
    """A cooldown of ten seconds lasted an hour longer."""
    machine = Machine()
    state = replace(small_state(), run_state=RunState.Cooldown, since=int(machine.wall))
    clock = CoordinatorClock(state, wall=lambda: machine.wall, monotonic=lambda: machine.up)

    async def play() -> list[RunState]:
        coordinator = MemoryCoordinator(state, clock=clock)
        seen = []
        for seconds, change in ((1, -HOUR), (8, 0), (1, 0)):
            machine.wall += change
            machine.passes(seconds)
            coordinator.tick()
            seen.append(coordinator.state.run_state)
        return seen

    assert anyio.run(play) == [RunState.Cooldown, RunState.Cooldown, RunState.WaitingForMembers]


def test_the_coordinator_in_a_process_has_such_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([START_TIME + 9.0, START_TIME - HOUR])
    monkeypatch.setattr("time.time", lambda: next(times, START_TIME - HOUR))

    async def play() -> float:
        return MemoryCoordinator(small_state())._clock()

    assert anyio.run(play) >= START_TIME
