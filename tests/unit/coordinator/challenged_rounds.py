"""Rounds of a run whose shares are checked: who is asked commits, and words accuse those who cheat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psyche_core.coordinator.lifecycle.challenges import challenge_of
from psyche_core.types import ClientState
from psyche_core.verification.challenge import Challenge, Stage
from psyche_core.verification.words import Word

RECOMPUTE = (Stage.COMMIT, Stage.RECOMMIT, Stage.TIE_COMMIT)
LONG = {"rounds_per_epoch": 60, "global_batch_size_start": 16, "global_batch_size_end": 16}


def commit_all(run: Any, *, silent: frozenset[int] = frozenset(), complain: bool = False) -> None:
    """Everybody that is asked for a root gives one."""
    for one in run.state.epoch.challenges:
        for slot in challenge_of(run.state, one).expected if one.stage in RECOMPUTE else ():
            known = any(root.slot == slot for root in one.roots)
            if slot not in silent and not known and run.state.epoch.clients[slot].state is ClientState.Healthy:
                complaint = complain and one.stage is Stage.COMMIT and not one.complained
                run.do(run.commit(slot, one.height, one.trainer, None if complaint else bytes([slot]) * 32))


def play_rounds(run: Any, rounds: int, **options: Any) -> Any:
    for _ in range(rounds):
        commit_all(run, **options)
        run.play_round()
        if run.phase not in ("RoundTrain", "RoundWitness"):
            break
    return run


def accuses(*trainers: int) -> Callable[[int, Challenge, int], Word]:
    """Honest words where these trainers cheat all the time."""
    return lambda _witness, challenge, _judge: Word.FAILED if challenge.drawn.trainer in trainers else Word.PASSED
