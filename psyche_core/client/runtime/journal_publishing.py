"""Publishes a client's finished journals in a folder (`--publish-journal`), beside training.

A journal is opened before it starts again, which takes no time, and copied later by a task of its own. What fails costs the copy
and one message, never the client. At the end everything that waits is copied, and a client that ends in order also copies the
journal as it is then. One that starts over does not: what its journal holds may belong to a history that the run has left. What
was published before the coordinator was restored from an older state stays: its name says of which history it is.
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
    """See the module. folder: where journals are published. instance: of the run (32 bytes). explain: see Worker."""

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
        """Open a journal that is about to start again; None if there is nothing to publish."""
        return await self._attempt(partial(hold, journal))

    def add(self, held: HeldSegment) -> None:
        """Publish this later."""
        self._waiting.append(held)
        self._more.set()

    async def run(self, journal: Journal | None) -> None:
        """Publish what is added, until cancelled; a copy that has begun is finished.

        journal: its predecessor is published first, if an earlier process could not. None: there is none.
        """
        held = None if journal is None else await self._attempt(partial(hold_file, earlier_path(journal.path)))
        if held is not None:
            self.add(held)
        while True:
            await self._more.wait()
            self._more = anyio.Event()
            await self.publish_waiting()

    async def publish_waiting(self) -> None:
        """Publish what was added."""
        async with self._one_at_a_time:
            while self._waiting:
                held = self._waiting[0]  # it stays if we are cancelled before the copy begins
                done = await self._attempt(partial(publish, held, self._folder, self._run_id, instance=self._instance))
                self._waiting.popleft()
                if done is not None:
                    steps = (done.first_step, done.last_step)
                    self._report(telemetry.JournalPublished(*steps, str(done.path), done.size, done.seconds))

    async def _attempt(self, action: Callable[[], _Result]) -> _Result | None:
        """Do something on the disk; what fails is told once, and gives None."""
        try:
            return await anyio.to_thread.run_sync(action)
        except Exception as error:
            logger.debug("publishing a journal failed", exc_info=error)
            sentence = self._explain(error)
            if sentence not in self._told:
                self._told.add(sentence)
                self._report(telemetry.Problem("warning", sentence))
            return None
