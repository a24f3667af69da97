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
