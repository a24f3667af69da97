"""Checks of shares are told from two readings of a chain as the coordinator told them when they ended."""

from __future__ import annotations

from random import Random

from plugins.backend_solana.tests.svm.random_commands import RandomCommands
from psyche_core.coordinator import apply, new_state
from psyche_core.coordinator.commands import ChallengeClosed, Event
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import CoordinatorError
from psyche_core.state_events import closed_challenges
from psyche_core.types import RunState

NOW = 1_700_000_000
PLAYING = (RunState.RoundTrain, RunState.RoundWitness)


def played(seed: int, *, commands: int) -> list[tuple[CoordinatorState, CoordinatorState, tuple[Event, ...]]]:
    """The states before and after each of so many random commands that changed something, and what the coordinator told."""
    drawn = RandomCommands(Random(seed), 6, verification_percent=100, rounds_per_epoch=0)
    drawn.diligent, drawn.blind, drawn.silent, drawn.restless = True, 0.0, -1, 0.0
    state = new_state("events", drawn.config, drawn.model, now=NOW, instance=bytes(32))
    steps, now = [], NOW
    for number in range(commands):
        command = drawn.next(state)
        now += drawn.seconds(state, command)
        try:
            after, events = apply(state, command, now, 1000 + number)
        except CoordinatorError:
            continue
        steps.append((state, after, events))
        state = after
    return steps


def height_of(state: CoordinatorState) -> int:
    """Of the current round, -1 before the first one."""
    return -1 if state.current_round is None else state.current_round.height


def test_two_readings_tell_the_verdicts_of_the_round_between_them() -> None:
    outcomes: set[str] = set()
    for seed in range(8):
        for before, after, events in played(seed, commands=400):
            if after.run_state not in PLAYING or before.run_state not in PLAYING:
                continue
            closed = [event for event in events if isinstance(event, ChallengeClosed)]
            assert list(closed_challenges(before, after)) == closed
            outcomes |= {event.outcome for event in closed}
    assert outcomes >= {"PASSED", "SILENCE", "UNDECIDED", "GUILTY"}, outcomes


def test_nothing_is_told_of_more_than_one_round() -> None:
    states = [before for before, _, _ in played(1, commands=400) if before.epoch.challenges]
    far = [(one, other) for one in states for other in states if height_of(other) > height_of(one) + 1]
    assert far
    assert all(closed_challenges(one, other) == () for one, other in far)
