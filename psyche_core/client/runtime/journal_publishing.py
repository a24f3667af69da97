"""Publishes a client's finished journals in a folder (`--publish-journal`), while training continues.

A journal's file is opened before the journal starts again, which takes no time; a separate task copies it later. A failure costs
the copy and one message, and does not stop the client. At the end all waiting journals are copied, and a client that ends
normally also copies its present journal. A client that starts over does not copy it: it may belong to a history that the run has
left. Journals published before the coordinator was restored from an older state stay: their names say to which history they
belong.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from psyche_core.telemetry import events as telemetry
from psyche_core.training.checkpoints.journal.journal import Journal
from psyche_core.training.checkpoints.journal.lock import earlier_path
from psyche_core.training.checkpoints.journal.publishing import HeldSegment, hold, hold_file, publish

logger: logging.Logger = logging.getLogger("psyche.client")

_Result = TypeVar("_Result")


class JournalPublisher:
    """Publishes journals; see the module. folder: the target. instance: of the run (32 bytes). explain: see Worker."""

    def __init__(
        self,
        folder: Path,
        *,
        run_id: str,
        instance: bytes,
        report: Callable[[telemetry.Event], None],
        explain: Callable[[BaseException], str],
    ) -> None:
        self._folder = folder
        self._run_id = run_id
        self._instance = instance
        self._report = report
        self._explain = explain
        self._waiting: deque[HeldSegment] = deque()
        self._more = anyio.Event()
        self._one_at_a_time = anyio.Lock()
        self._told: set[str] = set()

    async def hold(self, journal: Journal) -> HeldSegment | None:
        """Open a journal that will start again soon; return None if there is nothing to publish."""
        return await self._attempt(partial(hold, journal))

    def add(self, held: HeldSegment) -> None:
        """Publish this journal later."""
        self._waiting.append(held)
        self._more.set()

    async def run(self, journal: Journal | None) -> None:
        """Publish what is added, until cancelled; a copy that has begun is finished.

        journal: its predecessor is published first, if an earlier process could not publish it. None: there is no journal.
        """
        held = None if journal is None else await self._attempt(partial(hold_file, earlier_path(journal.path)))
        if held is not None:
            self.add(held)
        while True:
            await self._more.wait()
            self._more = anyio.Event()
            await self.publish_waiting()

    async def publish_waiting(self) -> None:
        """Publish all that was added."""
        async with self._one_at_a_time:
            while self._waiting:
                held = self._waiting[0]  # it stays if we are cancelled before the copy begins
                done = await self._attempt(partial(publish, held, self._folder, self._run_id, instance=self._instance))
                self._waiting.popleft()
                if done is not None:
                    steps = (done.first_step, done.last_step)
                    self._report(telemetry.JournalPublished(*steps, str(done.path), done.size, done.seconds))

    async def _attempt(self, action: Callable[[], _Result]) -> _Result | None:
        """Do something on the disk. Report each failure once, and return None for it."""
        try:
            return await anyio.to_thread.run_sync(action)
        except Exception as error:
            logger.debug("publishing a journal failed", exc_info=error)
            sentence = self._explain(error)
            if sentence not in self._told:
                self._told.add(sentence)
                self._report(telemetry.Problem("warning", sentence))
            return None
