"""Attacks on the history and on signed ends that once succeeded."""

from __future__ import annotations

from typing import Any

import pytest

from psyche_core.client.machine.coordinator_updates import _went_back
from psyche_core.client.machine.rounds.settled_rounds import decision_of, first_conflicting_step
from psyche_core.coordinator.history import histories

LIMITS = {"rounds_per_epoch": 3, "init_min_clients": 3, "min_clients": 2}
MADE_UP = b"\xaf" * 32


@pytest.mark.parametrize("stated", [1, 2])
def test_a_first_round_that_does_not_count_leaves_the_history_as_it_was(play: Any, stated: int) -> None:
    """Some members state in an epoch's first round, then all leave: its step is trained again, and nothing was decided."""
    run = play(3, **LIMITS)
    run.play_epoch()
    applied = [decision for step in (1, 2, 3) if (decision := decision_of(run.state, step)) is not None]
    assert len(applied) == 3
    before = histories(run.state)[3]
    run.cool_down()
    run.warm_up()
    for slot in range(stated):
        run.do(run.statement(slot))
    seen = run.state
    for slot in range(3):
        run.withdraw(slot)
    run.tick(after=40)
    if run.phase != "Cooldown":
        run.tick(after=40)
    assert (run.phase, run.state.progress.step) == ("Cooldown", 4)
    assert not _went_back(seen, run.state)
    assert first_conflicting_step(run.state, applied) is None
    assert histories(run.state)[3] == before


@pytest.mark.parametrize("gone_in", [0, 1])
def test_who_is_left_alone_in_an_epoch_s_first_rounds_signs_nothing_alone(play: Any, gone_in: int) -> None:
    """All others go before a result of theirs was accepted: a liar attests to itself, and signs the end with a made-up model."""
    run = play(4, **LIMITS)
    for _ in range(gone_in):
        run.play_round()
    for slot in (1, 2, 3):
        run.withdraw(slot)
    while run.phase in ("RoundTrain", "RoundWitness"):
        height = run.round.height
        if 0 in run.elected:
            run.do(run.statement(0, seen=[0] if 0 in run.shares(height - 1) else []))
        if run.phase in ("RoundTrain", "RoundWitness") and run.round.height == height:
            run.tick(after=41)
    assert run.phase == "Cooldown"
    run.do(run.end_digest(0, MADE_UP))
    assert run.state.ends == ()
