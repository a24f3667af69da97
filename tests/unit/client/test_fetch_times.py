"""How long a round's results took to come: what is counted in which round."""

from __future__ import annotations

from dataclasses import replace

from party import QUICK, TABLE
from psyche_core.client.runtime.reports.fetch_times import FetchTimes
from psyche_core.config.run_config import parse_run_file
from psyche_core.coordinator import new_state
from psyche_core.coordinator.state import CoordinatorState, Round
from psyche_core.telemetry.events import ResultsFetched
from psyche_core.types import BatchId, RunState


def state_of(height: int | None) -> CoordinatorState:
    """In a round of epoch 0; None: in the cooldown after it, whose state still has the round."""
    run = parse_run_file(QUICK.format(**TABLE), source="world")
    state = new_state("world", run.config, run.model, instance=bytes(32))
    played = Round(height or 0, (height or 0) + 1, 1, (0,), (BatchId(0, 9),))
    phase = RunState.Cooldown if height is None else RunState.RoundTrain
    return replace(state, run_state=phase, epoch=replace(state.epoch, rounds=(played,)))


def test_a_round_is_told_when_it_ends() -> None:
    times = FetchTimes()
    assert times.see(state_of(None), now=0.0) is None
    assert times.see(state_of(0), now=1.0) is None
    times.begun(2.0)
    times.begun(2.5)
    times.ended(3.0, size=None)
    times.ended(4.0, size=100)
    assert times.see(state_of(0), now=4.5) is None, "another state of the same round"
    assert times.see(state_of(1), now=9.0) == ResultsFetched(0, 0, 1, 1, 100, seconds=2.0, idle_seconds=5.0)
    assert times.see(state_of(None), now=12.0) is None, "nothing was fetched"


def test_a_download_that_goes_on_counts_where_it_ends() -> None:
    times = FetchTimes()
    times.see(state_of(0), now=0.0)
    times.begun(1.0)
    assert times.see(state_of(1), now=5.0) is None
    times.ended(6.0, size=7)
    assert times.see(state_of(None), now=8.0) == ResultsFetched(0, 1, 1, 0, 7, seconds=1.0, idle_seconds=2.0)
