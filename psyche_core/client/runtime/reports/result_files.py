"""Writes results as files, for people who study them: our own result of each step, and all results applied in a step.

A thread writes them, from a short queue, so that a slow disk does not delay a step. A result that finds the queue full is left
out. If the disk is full or fails, these files are lost and one warning is reported; nothing else happens.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from psyche_core.storage.disk_errors import disk_error_in
from psyche_core.storage.folders import whole_folder
from psyche_core.telemetry.events import Event, Problem

logger: logging.Logger = logging.getLogger("psyche.client")

WAITING_STEPS = 16
"""Steps whose results may wait to be written; their bytes are in memory until then."""

CLOSE_SECONDS = 10.0
"""How long a client that has ended waits for the remaining files."""

SUFFIX = ".payload"


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder to write, and the files in it by name."""

    path: Path
    files: tuple[tuple[str, bytes], ...]


class ResultFiles:
    """Writes results. own, accepted: folders, or None to write none of that kind. member: our key, as hex digits.

    Our own result of step 12 is `own/MEMBER/step-00000012/result.payload`. The results applied in it are
    `accepted/MEMBER/step-00000012/NUMBER-SHA256.payload`, in the order in which the client listed them. The bytes are those that
    members send each other; the optimizer can read them. A step that is trained or applied again replaces its folder.
    """

    def __init__(
        self, report: Callable[[Event], None], *, member: str, own: Path | None = None, accepted: Path | None = None
    ) -> None:
        self._report = report
        self._own = None if own is None else own / member[:16]
        self._accepted = None if accepted is None else accepted / member[:16]
        self._queue: queue.Queue[_Folder | None] = queue.Queue(WAITING_STEPS)
        self._problem: str | None = None
        self._told = False
        self._thread: threading.Thread | None = None

    def trained(self, step: int, payload: bytes) -> None:
        """Write our own result of a step."""
        if self._own is not None:
            self._put(_Folder(self._own / _name(step), ((f"result{SUFFIX}", payload),)))

    def applied(self, step: int, payloads: Sequence[bytes]) -> None:
        """Write the results that were applied in a step."""
        if self._accepted is not None:
            names = (f"{number:03}-{sha256(payload).hexdigest()[:16]}{SUFFIX}" for number, payload in enumerate(payloads))
            self._put(_Folder(self._accepted / _name(step), tuple(zip(names, payloads, strict=True))))

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write the remaining files, for at most this many seconds. Blocks; idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return

        try:
            self._queue.put(None, timeout=seconds)
            thread.join(seconds)
        except queue.Full:
            pass
        if thread.is_alive():
            logger.warning("results were not all written within %.0f s", seconds)

    def tell(self) -> None:
        """Report once what went wrong in the writing thread. Call it in the thread that reports."""
        if self._problem is not None and not self._told:
            self._told = True
            self._report(Problem("warning", self._problem))

    def _put(self, folder: _Folder) -> None:
        self.tell()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="result files", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(folder)
        except queue.Full:
            self._problem = self._problem or (
                f"results cannot be written to {folder.path.parent} as fast as they come, so some are missing; training goes on"
            )
            self.tell()

    def _write_all(self) -> None:
        while (folder := self._queue.get()) is not None:
            try:
                with whole_folder(folder.path) as unfinished:
                    for name, content in folder.files:
                        (unfinished / name).write_bytes(content)
            except Exception as error:  # nothing here may end training
                why = disk_error_in(error) or str(error)
                self._problem = self._problem or (
                    f"results could not be written to {folder.path.parent}: {why}; training goes on, and later ones are tried"
                )


def _name(step: int) -> str:
    return f"step-{step:08}"
