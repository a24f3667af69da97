"""Takes the model back from evaluations for each piece of work, and informs evaluations of the model's step.

How a model is lent is in `psyche_core.evaluation.spare_time`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import anyio
import anyio.to_thread

from psyche_core.client.machine.actions import Apply, FetchModel, Work
from psyche_core.client.machine.events import Applied, ModelFetched, ModelReady, WorkDone
from psyche_core.evaluation.spare_time import SpareTime

FIRST_MODEL_SECONDS = 10.0
"""Longest that a run's first model is kept from training for those who want to see what it writes before any step."""


class ModelLending:
    """Lets the worker and evaluations take turns with the model. spare: None if nothing evaluates."""

    def __init__(self, spare: SpareTime | None) -> None:
        self._spare = spare

    @contextlib.asynccontextmanager
    async def taken_back(self) -> AsyncIterator[None]:
        """Take the model back from evaluations, which stop at the next layer; lend it again after the block."""
        if self._spare is None:
            yield
            return

        try:
            if self._spare.reclaim():
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._spare.wait_until_free)
            yield
        finally:
            self._spare.release()

    async def show_first(self) -> None:
        """Leave a run's first model to evaluations until they have seen it, at most FIRST_MODEL_SECONDS.

        For a member that has not said yet that it is ready. Where processors are busy, the run would otherwise be many steps on
        before evaluations get their turn.
        """
        if self._spare is not None:
            await anyio.to_thread.run_sync(self._spare.wait_until_first_seen, FIRST_MODEL_SECONDS, abandon_on_cancel=True)

    def note_step(self, done: WorkDone, work: Work) -> None:
        """Inform evaluations of the step of the master weights."""
        if self._spare is None:
            return
        match done, work:
            case ModelReady(), _:
                self._spare.step = done.step or 0
            case Applied(), Apply():
                self._spare.step = work.step
            case ModelFetched(), FetchModel():
                self._spare.step = work.step
