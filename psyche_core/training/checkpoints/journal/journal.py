"""The rounds a client applied since its last checkpoint, in a file next to it. They restore the exact masters after any crash.

`apply` is exact and payloads are small, so a checkpoint and the payloads applied since give the masters of the last round, bit
for bit. A journal has one base: a step and the full digest of its masters. `begin` replaces the base; the caller calls it with
each checkpoint.

- A new journal is written next to the old one, flushed and renamed, so there is always a complete one.
- The journal before the present one is kept as `…-journal-earlier.bin`. A coordinator that was restored from an older state may
  be at a step before the present base; `read_earlier` then returns to that journal.
- If a file is damaged, its frames before the damage are used, and a copy of it is kept. A journal of another run, generation or
  version is renamed, not deleted.
- Only one process at a time can use a journal: it holds a lock on a file next to it, which the system releases when the process
  ends.

Not thread-safe: call it from one worker thread. The caller decides what is applied, when a checkpoint is saved, and which masters
are right. What is added to a journal, and when it is on the disk, is in `open_journal`; `journal_records` defines the format;
`replay` applies the rounds again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from filelock import BaseFileLock

from psyche_core.errors import ModelError, WireError
from psyche_core.storage.folders import flush
from psyche_core.training.checkpoints.journal.contents import EarlierJournal, Recovered
from psyche_core.training.checkpoints.journal.file import JournalFile, OtherVersion, header_in
from psyche_core.training.checkpoints.journal.lock import earlier_path, journal_path, lock_journal
from psyche_core.training.checkpoints.journal.open_journal import LEAST_LIMIT as LEAST_LIMIT
from psyche_core.training.checkpoints.journal.open_journal import OpenJournal
from psyche_core.training.checkpoints.journal.open_journal import default_limit as default_limit
from psyche_core.training.checkpoints.journal.quarantined_journals import (
    Reach,
    keep_damaged_end,
    set_journal_aside,
    take_journal_back,
)
from psyche_core.training.checkpoints.journal.replacement import copy_records, newest_results, replacement
from psyche_core.training.checkpoints.journal_records import NO_DIGEST, AppliedRound, Header
from psyche_core.training.checkpoints.quarantine_names import abandoned_name


class Journal(OpenJournal):
    """A run's journal, see the module. Made by `open`. As a context manager, it closes itself at the end of the block."""

    def __init__(
        self, path: Path, lock: BaseFileLock, *, instance: bytes, limit_bytes: int, report: Callable[[str], None]
    ) -> None:
        super().__init__(path, limit_bytes=limit_bytes)
        self._lock = lock
        self._instance = instance
        self._report = report

    @classmethod
    def open(
        cls,
        folder: Path,
        run_id: str,
        *,
        instance: bytes,
        limit_bytes: int,
        report: Callable[[str], None] = lambda _: None,
        lock: BaseFileLock | None = None,
    ) -> Self:
        """Open the journal of a run for this process. Call `read` or `begin` next.

        instance: of the run (32 bytes). limit_bytes: see `full`. report: called with a sentence if data on the disk is damaged or
        belongs to another run. lock: the result of `lock_journal`, None to call it now. Raises the same errors as `lock_journal`.
        """
        taken = lock_journal(folder, run_id) if lock is None else lock
        return cls(journal_path(folder, run_id), taken, instance=instance, limit_bytes=limit_bytes, report=report)

    def __enter__(self) -> Self:
        """Return the journal itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the journal."""
        self.close()

    def close(self) -> None:
        """Close the file and release the lock. Data that is not synced is lost. Idempotent."""
        self._adopt(None)
        self._lock.release()

    # ------------------------------------------------------------------------------------------------------------ writing

    def begin(self, base_step: int, base_digest: bytes, generation: int, *, base_history: bytes = NO_DIGEST) -> None:
        """Replace the journal by one with a new base. base_digest, base_history: of the masters after base_step, see `Header`.

        Results of later steps in the same generation are copied, because a checkpoint may be saved before they are applied. An
        old journal of the same generation becomes the earlier one, unless it has no rounds and the earlier one leads to its base:
        that one can restore more. Delete the older checkpoint only afterwards. Raises ModelError on a disk error; then the old
        journal stays in use.
        """
        header = Header(
            instance=self._instance,
            generation=generation,
            base_step=base_step,
            base_digest=base_digest,
            base_history=base_history,
        )
        old = self._file
        kept = old is not None and not self._gap and old.header.generation == generation
        if kept:
            with contextlib.suppress(ModelError):
                self.sync()  # a return to the old journal needs what is still in memory
        with self._replacement(header, keep_old=kept and not self._adds_nothing()) as new:
            if old is not None and kept:
                copy_records(old, (each for each in old.pending if each.step > base_step), new)

    def _adds_nothing(self) -> bool:
        """Return whether this journal has only a base, and the journal before it leads to the same base."""
        file = self._file
        if file is None or file.last_step > file.header.base_step:
            return False

        earlier = self.earlier()
        if earlier is None:
            return False
        with earlier:
            known = earlier.recovered
            return known.header.base_step <= file.header.base_step <= known.last_step

    def rewind(self, step: int, *, generation: int | None = None) -> None:
        """Keep only rounds up to `step`, because the run went back. generation: the run's new one; None if it has not changed.

        If the generation is the same, results of later steps are kept: a coordinator that was restored from an older state may
        still accept them, and no other member may have them any more. With another generation they are removed.

        If the disk has no room for a new file, the rounds after `step` are cut off from this one, with all that was added after
        the first of them: they must not be replayed again, even if the coordinator no longer stores what contradicts them. The
        cut journal keeps its generation, so a change of it raises ModelError.

        Raises ModelError if the base is later than `step`, or on a disk error; then nothing else has changed.
        """
        file = self._file
        if file is None:
            message = f"the journal {self._path} is empty, so it cannot go back"
            raise ModelError(message)

        if step < file.header.base_step:
            message = (
                f"the journal {self._path} begins with step {file.header.base_step}, and the run went back to step {step}: "
                "an older checkpoint is needed"
            )
            raise ModelError(message)

        self.sync()
        header = file.header if generation is None else replace(file.header, generation=generation)
        later = newest_results(file.records(), after=step) if header.generation == file.header.generation else set()
        try:
            with self._replacement(header) as new:
                copy_records(file, (each for each in file.records() if each.step <= step or each in later), new)
        except ModelError as error:
            if self._file is not file:
                raise  # it was replaced
            self._cut_off(file, step, error)
            if header.generation != file.header.generation:
                raise

    def _cut_off(self, file: JournalFile, step: int, error: ModelError) -> None:
        """Remove the rounds after `step` in place, and read the journal again.

        error: why there is no new file; raised if the disk refuses this, too.
        """
        if step >= file.last_step:
            return

        try:
            file.cut_before(step + 1)
        except (OSError, WireError):
            raise error from None
        self._report(f"{error}. Its rounds after step {step}, which the run has left, were cut off instead")
        self.read()

    # ------------------------------------------------------------------------------------------------------------ reading

    def read_earlier(self, helps: Callable[[Header, Sequence[AppliedRound]], bool]) -> Recovered | None:
        """Return to the journal before this one and read it. Returns None, with nothing changed, if it does not help.

        helps: called with its base and its rounds, but not if it is of another run. The present journal, which belongs to a
        history that the run has left, is set aside. Raises ModelError on a disk error.
        """
        path = earlier_path(self._path)
        try:
            file = JournalFile.load(path)
        except (OSError, WireError):
            return None  # most runs have none, and a damaged one is of no use

        header, rounds = file.header, tuple(file.rounds)
        file.close()
        if header.instance != self._instance or not helps(header, rounds):
            return None

        self._adopt(None)
        target = abandoned_name(self._path)
        try:
            with contextlib.suppress(OSError):  # without hard links the present one is lost
                os.link(self._path, target)
            os.replace(path, self._path)  # noqa: PTH105 - it replaces on every system
        except OSError as error:
            raise ModelError(self._unreadable(error)) from error

        self._report(
            f"the coordinator went back to before our last checkpoint, so the journal that begins with step {header.base_step} "
            f"is used; the newer one is no longer part of the run's history, and was renamed to {target.name}"
        )
        return self.read()

    def earlier(self) -> EarlierJournal | None:
        """Open the journal before this one for reading; None if no readable one of this run and generation exists."""
        try:
            file = JournalFile.load(earlier_path(self._path))
        except (OSError, WireError):
            return None

        if self.header is None or (file.header.instance, file.header.generation) != (self._instance, self.header.generation):
            file.close()
            return None
        return EarlierJournal(file)

    def take_back(self, reach: Reach, *, certain: Callable[[Header], bool]) -> None:
        """Return to a journal of this run that was set aside, if the present one cannot be used. Call `read` next.

        reach, certain: see `take_journal_back`. The journal before the one that is used is then also restored. Raises ModelError.
        """
        self._adopt(None)
        take_journal_back(self._path, instance=self._instance, reach=reach, certain=certain, report=self._report)
        header = header_in(self._path)
        if header is None or header.instance != self._instance:
            return

        def leads_to_base(earlier: Header, rounds: Sequence[AppliedRound]) -> int | None:
            last = earlier.base_step + len(rounds)
            fits = earlier.generation == header.generation and earlier.base_step < header.base_step <= last
            return last if fits else None

        earlier = earlier_path(self._path)
        take_journal_back(earlier, instance=self._instance, reach=leads_to_base, certain=lambda _: False, report=self._report)

    def set_aside(self, reason: str) -> None:
        """Rename the journal, because it cannot be used now, and report why. Raises ModelError."""
        self._adopt(None)
        self._set_aside(reason)

    def read(self, *, generation: int | None = None) -> Recovered | None:
        """Read the journal from the disk. Returns None if there is no usable one. After this, new data can be added.

        An incomplete or damaged end is reported through `report` and removed; a copy is kept unless it is a part of one record. A
        journal of another run or version, or of another generation if one is given, is reported and renamed, and so is one whose
        beginning is damaged. Raises ModelError if the disk cannot be read.
        """
        self._adopt(None)
        try:
            file = JournalFile.load(self._path)
        except FileNotFoundError:
            return None
        except WireError as error:
            self._set_aside(str(error), damaged=not isinstance(error, OtherVersion))
            return None
        except OSError as error:
            raise ModelError(self._unreadable(error)) from error

        header = file.header
        if header.instance != self._instance or generation not in (None, header.generation):
            file.close()
            was = f"generation {header.generation} of the run, which is in generation {generation}"
            self._set_aside("it belongs to another run" if header.instance != self._instance else f"it belongs to {was}")
            return None

        if file.lost:
            self._cut(file)
        self._adopt(file)
        found = Recovered(header=header, rounds=tuple(file.rounds), pending=tuple(file.pending), payload=self.payload)
        file.rounds = []  # the caller has them now
        return found

    @contextmanager
    def _replacement(self, header: Header, *, keep_old: bool = False) -> Iterator[JournalFile]:
        """Write a new file in the block; from the block's end on it is the journal, see `replacement`. Raises ModelError."""
        with replacement(self._path, header, keep_old=keep_old) as new:
            yield new

        self._adopt(new)
        try:
            flush(self._path.parent)
        except OSError as error:
            raise ModelError(self._unreadable(error)) from error

    def _set_aside(self, reason: str, *, damaged: bool = False) -> None:
        try:
            set_journal_aside(self._path, reason, report=self._report, damaged=damaged)
        except OSError as error:
            raise ModelError(self._unreadable(error)) from error

    def _cut(self, file: JournalFile) -> None:
        """Remove the damaged end of a file and report what is lost."""
        lost = keep_damaged_end(file, self._path)
        try:
            file.cut()
        except OSError as error:
            file.close()
            raise ModelError(self._unreadable(error)) from error

        self._report(f"{lost}, and the journal now ends with step {file.last_step}")
