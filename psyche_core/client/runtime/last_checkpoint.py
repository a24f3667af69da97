"""The checkpoint that a client saves when it leaves, within a time limit, and what the next start has without it.

All functions but `within` block, and belong in a worker thread. `checkpointing` decides when they are called and what is
reported.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio

from psyche_core.client.machine.actions import Apply, CloseEpoch, FetchModel
from psyche_core.client.runtime.resources import Resources
from psyche_core.storage.checkpoint_names import checkpoint_path, checkpoints
from psyche_core.training.checkpoints.checkpoint import remove_between, save_checkpoint
from psyche_core.training.checkpoints.journal.journal import Journal
from psyche_core.training.checkpoints.journal_records import NO_DIGEST
from psyche_core.training.checkpoints.manifest import CheckpointFacts
from psyche_core.training.checkpoints.private_state import private_path

LEAVING_SECONDS = 60.0
"""Time limit of the checkpoint saved on leaving; service managers kill a process soon after that."""

_POLL_SECONDS = 0.02
_Result = TypeVar("_Result")
Made = Apply | CloseEpoch | FetchModel
"""Work that makes master weights."""


def save_last(resources: Resources, work: Made, *, run_id: str, instance: bytes) -> Path:
    """Save the master weights that a work made, and the optimizer's own state; return the checkpoint's folder.

    The journal stays, with the checkpoint it continues from: it can restore every step in between.
    """
    assert resources.checkpoints is not None
    journal, digest = resources.journal, resources.trainer.full_digest()
    directory = checkpoint_path(resources.checkpoints, run_id, work.step)
    save_checkpoint(directory, facts_of(work, digest, run_id=run_id, instance=instance), write=resources.trainer.save)
    resources.trainer.save_private(private_path(resources.checkpoints, run_id))
    header = None if journal is None else journal.header
    if journal is None:
        return directory

    if header is None or journal.broken or (journal.last_step, header.generation) != (work.step, work.generation):
        begin_after(journal, work, digest)
    else:  # a checkpoint saved on an earlier leaving is no longer useful
        remove_between(resources.checkpoints, run_id, after=header.base_step, before=work.step, instance=instance)
    return directory


def what_is_kept(resources: Resources, run_id: str) -> str:
    """Return what the next start can use if no last checkpoint was saved, as the end of a sentence."""
    journal = resources.journal
    if journal is not None and journal.header is not None and journal.path.exists():
        return "the next start replays the journal instead"

    saved: list[Path] = []
    if resources.checkpoints is not None:
        with contextlib.suppress(OSError):
            saved = checkpoints(resources.checkpoints, run_id)
    if saved:
        return f"the next start goes on from the checkpoint {saved[-1].name}"
    return "nothing of this run is on this disk; the next start gets the model from the other members"


def facts_of(work: Made, digest: bytes, *, run_id: str, instance: bytes) -> CheckpointFacts:
    """Return the facts of a checkpoint of the master weights that a work made. digest: their full digest, 32 bytes."""
    at_end = isinstance(work, CloseEpoch) or (isinstance(work, FetchModel) and work.epoch_end)
    return CheckpointFacts(
        run_id=run_id,
        step=work.step,
        epoch=work.epoch,
        data_index=work.data_index,
        digest=digest,
        generation=work.generation,
        mid_epoch=not at_end,
        instance=instance,
        decision=work.decision,
    )


def begin_after(journal: Journal, work: Made, digest: bytes) -> None:
    """Start the journal again with the masters that a work made. digest: their full digest, 32 bytes."""
    history = NO_DIGEST if work.decision is None else work.decision.history
    journal.begin(work.step, digest, work.generation, base_history=history)


async def within(seconds: float, action: Callable[[], _Result]) -> _Result:
    """The result of an action, run in a daemon thread. Raises TimeoutError, and what the action raises."""
    given: list[_Result] = []
    raised: list[Exception] = []

    def work() -> None:
        try:
            given.append(action())
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=work, name="last checkpoint", daemon=True)
    thread.start()
    with anyio.fail_after(seconds):
        while thread.is_alive():  # noqa: ASYNC110 - a thread of our own knows no event loop
            await anyio.sleep(_POLL_SECONDS)
    if raised:
        raise raised[0]

    return given[0]
