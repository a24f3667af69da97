"""Watches the processes of a group: when one ends, all end, with one sentence that says which one and what to do.

In each process a thread, with its own connection to the store, writes a beat twice a second and checks for failures. Rank 0
checks the beats of all ranks and the processes it started, the others check rank 0's beat. All end with the first sentence under
`failure`. The end of a process is noticed at once, the loss of a machine by its silence. Idle ranks beat, too, so waiting for
hours is no failure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from torch.distributed import DistError

from psyche_core.models.sharding.rendezvous import Store

BEAT_SECONDS: Final = 0.5
SILENT_SECONDS: Final = 60.0
"""A rank whose beat does not change for so long is lost; far longer than a busy machine delays a thread."""

MAX_SENTENCE: Final = 600


def report_failure(store: Store, sentence: str) -> None:
    """Say why everybody has to end, unless somebody has said so already. Raises nothing: rank 0 may be gone."""
    try:
        store.compare_set("failure", "", sentence[:MAX_SENTENCE])
    except (DistError, RuntimeError):
        return


class Watch:
    """See the module.

    others: who is watched by beats, rank -> where it runs. problem: a sentence when a process here has ended. lost: called once,
    in the watching thread, with the sentence all end with.
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
        self._thread = threading.Thread(target=self._run, name=f"watch of rank {rank}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait until it has ended; from another thread. Idempotent."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        seen: dict[int, tuple[int, float]] = {}
        while not self._stop.wait(BEAT_SECONDS):
            try:
                sentence = self._problem() or self._look(seen)
            except (DistError, RuntimeError):  # the store went with rank 0
                sentence = "the client (rank 0) is gone"
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
