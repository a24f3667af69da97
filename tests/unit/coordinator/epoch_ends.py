"""Epochs that ended, and members that lack the model: for tests of the run's history."""

from __future__ import annotations

from typing import Any

from psyche_core.config.run_config import Choice
from psyche_core.coordinator.checkpoints import checkpointer_slot
from psyche_core.coordinator.commands import (
    Checkpoint,
)
from psyche_core.coordinator.state import NO_DIGEST

FIRST, SECOND, THIRD, OTHER = (bytes([number]) * 32 for number in (0xA1, 0xA2, 0xA3, 0xAF))
HUB = Choice("Hub", {"repo_id": "owner/stored"})
LIMITS = {"rounds_per_epoch": 2, "init_min_clients": 2, "min_clients": 2}


def ended(play: Any, *digests: bytes, clients: int = 4, **config: Any) -> Any:
    """A run of epochs of two steps whose ends everybody signed; waiting for members."""
    run = play(clients, **{**LIMITS, **config})
    for place, digest in enumerate(digests):
        run.play_signed_epoch(digest)
        if place < len(digests) - 1:
            run.warm_up()
    assert run.phase == "WaitingForMembers"
    return run


def warming(run: Any) -> Any:
    """The next warmup."""
    run.tick(after=3)
    assert run.phase == "Warmup"
    return run


def store(run: Any) -> None:
    slot = checkpointer_slot(run.state)
    assert slot is not None
    run.do(Checkpoint(run.state.epoch.clients[slot].id, HUB))


# ---------------------------------------------------------------- back to a step of the last rounds
def digest_of(step: int) -> bytes:
    return bytes([0xD0, step]) * 16


def played(play: Any, *, said: dict[int, dict[int, bytes]] | None = None, seen: Any = None, **config: Any) -> Any:
    """The warmup after an epoch of four steps whose end nobody signed. said: what a slot said of a step instead of the digest."""
    run = play(4, **{**LIMITS, "rounds_per_epoch": 4, **config})
    while run.phase in ("RoundTrain", "RoundWitness"):
        height, step = run.round.height, run.round.step - 2
        for slot in run.elected:
            if run.round.height == height:
                digest = (said or {}).get(step, {}).get(slot, digest_of(step) if step > 0 else NO_DIGEST)
                run.do(run.statement(slot, model_digest=digest, seen=seen if height == 3 else None), after=1)
    run.tick(after=11)
    return warming(run)
