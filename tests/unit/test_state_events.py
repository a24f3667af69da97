"""Who follows a coordinator's states learns how checks of shares ended, as if it had been told."""

from __future__ import annotations

import itertools
from dataclasses import replace

from psyche_core.coordinator.commands import ClientsExited
from psyche_core.state_events import checks_between, lost
from psyche_core.types import ClientState
from tests.unit.coordinator.checked_run import CHEAT, checked_run


def test_a_state_of_each_round_tells_all_checks_in_order() -> None:
    states, checks = checked_run()
    assert {check.outcome for check in checks} == {"passed", "guilty", "undecided"}
    told = [check for before, after in itertools.pairwise(states) for check in checks_between(before, after)]
    assert told == list(checks)


def test_nothing_is_told_where_the_run_went_back_or_another_began() -> None:
    states, _ = checked_run()
    pairs = [(before, after) for before, after in itertools.pairwise(states) if checks_between(before, after)]
    assert pairs
    for before, after in pairs:
        assert checks_between(before, replace(after, generation=before.generation + 1)) == ()
        assert checks_between(before, replace(after, instance=b"o" * 32)) == ()


def test_the_ejected_is_lost() -> None:
    states, _ = checked_run()
    assert states[-1].epoch.clients[CHEAT].state is ClientState.Ejected
    assert lost(states[-2], states[-1]) == (ClientsExited(epoch=0, slots=(CHEAT,)),)
