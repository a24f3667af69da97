"""A run whose shares are checked, with a member that cheats, as those see it who follow its states."""

from __future__ import annotations

from functools import cache
from typing import Any

from psyche_core.coordinator.commands import ChallengeClosed
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry.events import ShareChecked
from psyche_core.types import ClientState
from tests.unit.coordinator.challenged_rounds import LONG, accuses, play_rounds
from tests.unit.coordinator.conftest import Play, make_state

CHEAT = 3


@cache
def checked_run() -> tuple[tuple[CoordinatorState, ...], tuple[ShareChecked, ...]]:
    """The state of each round until the cheat is ejected, and the checks that ended between them, in order."""
    keys: dict[str, Any] = {"verification_percent": 20, **LONG}
    run = Play(make_state(**keys)).start(8)
    run.say = accuses(CHEAT)
    states = [run.state]
    while run.state.epoch.clients[CHEAT].state is not ClientState.Ejected:
        play_rounds(run, 1)
        states.append(run.state)
    names = [client.id.short for client in run.state.epoch.clients]
    return tuple(states), tuple(
        ShareChecked(
            event.epoch,
            event.height,
            names[event.trainer],
            names[event.verifier],
            event.outcome.lower(),
            tuple(names[slot] for slot in event.strikes),
        )
        for event in run.events
        if isinstance(event, ChallengeClosed)
    )
