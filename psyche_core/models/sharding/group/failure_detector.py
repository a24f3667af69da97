"""Watches the processes of a group: if one ends, all end, with one sentence that says which one and what to do.

In each process a thread, with its own connection to the store, writes a heartbeat twice a second and checks for failures. Rank 0
checks the heartbeats of all ranks and the processes it started; the other ranks check rank 0's heartbeat. All ranks end with the
first sentence that is stored under the key `failure`. The end of a process is detected at once, the loss of a machine by missing
heartbeats. Idle ranks also send heartbeats, so waiting for hours is not a failure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from torch.distributed import DistError

from psyche_core.models.sharding.group.rendezvous import Store

HEARTBEAT_SECONDS: Final = 0.5
SILENT_SECONDS: Final = 60.0
"""Time without a new heartbeat after which a rank is lost. It is far longer than a busy machine delays a thread."""

MAX_SENTENCE: Final = 600


def report_failure(store: Store, sentence: str) -> None:
    """Store why all ranks have to end, unless another reason is already stored. Never raises, because rank 0 may have ended."""
    try:
        store.compare_set("failure", "", sentence[:MAX_SENTENCE])
    except (DistError, RuntimeError):
        return


class FailureDetector:
    """The failure detector of one process, see the module.

    store: a connection that no other thread uses. others: where each rank runs whose heartbeat is checked, by rank. lost: called
    once, in the watching thread, with the sentence with which all ranks end. problem: returns a sentence if a local process has
    ended, else None. silent_seconds: time without a heartbeat after which a rank is lost.
    """

    def __init__(
        self,
        store: Store,
        *,
        rank: int,
        others: Mapping[int, str],
        lost: Callable[[str], None],
        problem: Callable[[], str | None] = lambda: None,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._store = store
        self._rank = rank
        self._others = others
        self._lost = lost
        self._problem = problem
        self._silent_seconds = silent_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"failure detector of rank {rank}", daemon=True)

    def start(self) -> None:
        """Start the watching thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the watching thread and wait for its end, unless called in that thread. Idempotent."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        seen: dict[int, tuple[int, float]] = {}
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                sentence = self._problem() or self._look(seen)
            except (DistError, RuntimeError):  # the store ended with rank 0
                sentence = "the client (rank 0) has ended"
            if sentence is not None and not self._stop.is_set():
                report_failure(self._store, sentence)
                self._lost(sentence)
                return

    def _look(self, seen: dict[int, tuple[int, float]]) -> str | None:
        self._store.add(f"beat/{self._rank}", 1)
        if self._store.check(["failure"]):
            return self._store.get("failure").decode(errors="replace")

        for rank, where in self._others.items():
            beat, now = self._store.add(f"beat/{rank}", 0), time.monotonic()
            if rank not in seen or seen[rank][0] != beat:
                seen[rank] = beat, now
            elif now - seen[rank][1] > self._silent_seconds:
                return f"rank {rank} ({where}) has been silent for {self._silent_seconds:g} s; is its machine still there?"
        return None
