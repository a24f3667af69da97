"""The rounds a client applied since its last checkpoint, in a file next to it. They restore the exact masters after any crash.

`apply` is exact and payloads are small, so a checkpoint and the payloads applied since give the masters of the last round, bit
for bit. A journal has one base: a step and the full digest of its masters. `begin` replaces the base; the caller calls it with
each checkpoint.

- `add_result` and `add_applied` write to memory, `sync` writes to the disk. Synced data survives a crash of process or machine.
- A new journal is written next to the old one, flushed and renamed, so there is always a complete one.
- The journal before the present one is kept as `…-journal-earlier.bin`. A coordinator that was restored from an older state may
  be at a step before the present base; `read_earlier` then returns to that journal.
- If a file is damaged, its frames before the damage are used, and a copy of it is kept. A journal of another run, generation or
  version is renamed, not deleted.
- A write error of the disk raises ModelError; the file stays unchanged, and the next `sync` tries again. If the data in memory
  exceeds the limit after such an error, the journal is abandoned: it accepts nothing before the next `begin`, because a journal
  with a gap cannot be replayed.
- Only one process at a time can use a journal: it holds a lock on a file next to it, which the system releases when the process
  ends.

Not thread-safe: call it from one worker thread. The caller decides what is applied, when a checkpoint is saved, and which masters
are right. `journal_records` defines the format; `replay` applies the rounds again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from filelock import BaseFileLock

from psyche_core.errors import ModelError, WireError
from psyche_core.storage.folders import flush
from psyche_core.training.checkpoints.journal.contents import EarlierJournal, Recovered
from psyche_core.training.checkpoints.journal.file import JournalFile, OtherVersion, header_in
from psyche_core.training.checkpoints.journal.lock import earlier_path, journal_path, lock_journal
from psyche_core.training.checkpoints.journal.quarantined_journals import (
    Reach,
    keep_damaged_end,
    set_journal_aside,
    take_journal_back,
)
from psyche_core.training.checkpoints.journal.replacement import copy_records, newest_results, replacement
from psyche_core.training.checkpoints.journal_records import MAX_RECORD_BYTES, NO_DIGEST, AppliedRound, Header, StoredResult
from psyche_core.training.checkpoints.quarantine_names import abandoned_name

LEAST_LIMIT: Final = 64 * 2**20
"""Smallest limit of a journal in bytes: thousands of rounds of a small model."""


def default_limit(model_bytes: int) -> int:
    """Return the default limit of a journal in bytes: twice the size of the model, but at least LEAST_LIMIT.

    model_bytes: size of its float32 parameters. With 1-bit DisTrO the limit is hundreds of rounds; with AdamW, whose results have
    half the model's size, it is four results. A checkpoint has the model's size, so above this limit it is cheaper to save a
    checkpoint early than to make the journal longer.
    """
    return max(LEAST_LIMIT, 2 * model_bytes)


class Journal:
    """A run's journal, see the module. Made by `open`. As a context manager, it closes itself at the end of the block."""

    def __init__(
        self, path: Path, lock: BaseFileLock, *, instance: bytes, limit_bytes: int, report: Callable[[str], None]
    ) -> None:
        self._path = path
        self._lock = lock
        self._instance = instance
        self._limit = limit_bytes
        self._report = report
        self._file: JournalFile | None = None
        self._refused = False  # the last sync failed
        self._gap = False  # data that was not synced has been discarded
        self._suspended = False  # see `suspend`

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

    # ------------------------------------------------------------------------------------------------------------ figures

    @property
    def path(self) -> Path:
        """Path of the journal."""
        return self._path

    @property
    def header(self) -> Header | None:
        """The base of the journal; None until `begin`, or a `read` that found a journal, sets it."""
        return None if self._file is None else self._file.header

    @property
    def last_step(self) -> int | None:
        """The last applied step, synced or not; the step of the base if there is none; None without a base."""
        return None if self._file is None else self._file.last_step

    def set_limit(self, limit_bytes: int) -> None:
        """Set another limit, see `full`."""
        self._limit = limit_bytes

    @property
    def size(self) -> int:
        """Size of the file in bytes, including data that is not synced."""
        return 0 if self._file is None else self._file.size

    @property
    def full(self) -> bool:
        """Whether it exceeds its limit, so that a checkpoint and `begin` are due. It still accepts new data."""
        return self.size > self._limit

    @property
    def broken(self) -> bool:
        """Whether it accepts nothing before the next `begin`: it has no base, is suspended, or discarded data on a full disk."""
        return self._file is None or self._gap or self._suspended

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
                self.sync()  # what is still in memory is needed to go back to it
        with self._replacement(header, keep_old=kept and not self._adds_nothing()) as new:
            if old is not None and kept:
                copy_records(old, (each for each in old.pending if each.step > base_step), new)

    def _adds_nothing(self) -> bool:
        """Whether this journal has only a base, to which the one before it leads, too."""
        file = self._file
        if file is None or file.last_step > file.header.base_step:
            return False

        earlier = self.earlier()
        if earlier is None:
            return False
        with earlier:
            known = earlier.recovered
            return known.header.base_step <= file.header.base_step <= known.last_step

    def add_result(self, result: StoredResult, payload: bytes) -> bool:
        """Add a verified result. Returns False if it is already in the journal. payload: must match `result.payload_hash`.

        Raises ModelError if the journal is broken, if the payload has another hash, or for values out of range.
        """
        file = self._usable()
        if file.has_result(result.commitment):
            return False

        if not file.has_payload(result.payload_hash):
            if hashlib.sha256(payload).digest() != result.payload_hash:
                message = (
                    f"a result of step {result.step} does not match its hash, so it is not added to the journal {self._path}"
                )
                raise ModelError(message)

            self._make_room(len(payload))
            file.add_payload(payload, result.payload_hash)
        self._add(file, result)
        return True

    def add_applied(self, applied: AppliedRound) -> None:
        """Add a round that was applied. Its payloads must have been added before with their results.

        Raises ModelError if the journal is broken, if the step is not the next one, if a payload is missing, or for values out of
        range.
        """
        self._add(self._usable(), applied)

    def sync(self) -> None:
        """Write all added data to the disk, so that it survives a power failure. Raises ModelError; then call it again later."""
        file = self._file
        if file is None or self._gap:
            return

        try:
            file.sync()
        except OSError as error:
            self._refused = True
            message = (
                f"the journal {self._path} was not written: {_reason(error)}; make room on its disk, "
                f"until then the rounds after step {file.synced_step} are only in memory"
            )
            raise ModelError(message) from error

        self._refused = False

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
        """Remove the rounds after `step` in place, and read the journal again. error: why there is no new file; raised if the
        disk refuses this, too.
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

    @property
    def pending(self) -> tuple[StoredResult, ...]:
        """Results of later steps than the last applied one."""
        return () if self._file is None else tuple(self._file.pending)

    def read_earlier(self, helps: Callable[[Header, Sequence[AppliedRound]], bool]) -> Recovered | None:
        """Return to the journal before this one and read it. Returns None, with nothing changed, if it does not help.

        helps: given its base and its rounds; not called if it is of another run. The present journal, which belongs to a history
        that the run has left, is set aside. Raises ModelError on a disk error.
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
        """Open the journal before this one for reading, None if there is none of this run and generation that can be read."""
        try:
            file = JournalFile.load(earlier_path(self._path))
        except (OSError, WireError):
            return None

        if self.header is None or (file.header.instance, file.header.generation) != (self._instance, self.header.generation):
            file.close()
            return None
        return EarlierJournal(file)

    def take_back(self, reach: Reach, *, certain: Callable[[Header], bool]) -> None:
        """Return to a journal of this run that was set aside, if the present one is of no use. Call `read` next.

        reach, certain: see `take_journal_back`. The journal before the one that is used then comes back with it. Raises
        ModelError.
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
        """Rename the journal, because it is of no use now, and tell people why. Raises ModelError."""
        self._adopt(None)
        self._set_aside(reason)

    def suspend(self) -> None:
        """Accept nothing before the next `begin` or `read`. The file stays as it is."""
        self._suspended = True

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

    def payload(self, payload_hash: bytes) -> bytes:
        """Return the payload with this SHA-256. Raises ModelError if it is not in the journal, or not any more."""
        try:
            if self._file is not None:
                return self._file.payload(payload_hash)
        except KeyError:
            pass
        except (OSError, WireError) as error:
            raise ModelError(self._unreadable(error)) from error

        message = f"the journal {self._path} does not contain payload {payload_hash.hex()[:16]}…"
        raise ModelError(message)

    # ------------------------------------------------------------------------------------------------------------ inside

    def _usable(self) -> JournalFile:
        if self._file is None or self.broken:
            reason = "has a gap, because its disk was full for too long" if self._gap else "has no base yet"
            reason = "does not lead to the present model" if self._suspended else reason
            message = f"the journal {self._path} {reason}; it restarts with the next checkpoint"
            raise ModelError(message)

        return self._file

    def _add(self, file: JournalFile, record: StoredResult | AppliedRound) -> None:
        self._make_room(MAX_RECORD_BYTES)
        try:
            file.add(record)
        except WireError as error:
            message = f"a record of step {record.step} cannot be added to the journal {self._path}: {error}"
            raise ModelError(message) from error

    def _make_room(self, count: int) -> None:
        """Discard unsynced data if the disk failed and the data would exceed the limit. Raises ModelError in this case."""
        file = self._usable()
        if self._refused and file.waiting + count > self._limit:
            file.drop_waiting()
            self._gap = True
            self._usable()

    @contextmanager
    def _replacement(self, header: Header, *, keep_old: bool = False) -> Iterator[JournalFile]:
        """A new file to write, used from the end of the block on, see `replacement`. Raises ModelError."""
        with replacement(self._path, header, keep_old=keep_old) as new:
            yield new

        self._adopt(new)
        try:
            flush(self._path.parent)
        except OSError as error:
            raise ModelError(self._unreadable(error)) from error

    def _adopt(self, file: JournalFile | None) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._refused, self._gap, self._suspended = file, False, False, False

    def _set_aside(self, reason: str, *, damaged: bool = False) -> None:
        try:
            set_journal_aside(self._path, reason, report=self._report, damaged=damaged)
        except OSError as error:
            raise ModelError(self._unreadable(error)) from error

    def _cut(self, file: JournalFile) -> None:
        """Remove the damaged end of a file and tell people what is lost."""
        lost = keep_damaged_end(file, self._path)
        try:
            file.cut()
        except OSError as error:
            file.close()
            raise ModelError(self._unreadable(error)) from error

        self._report(f"{lost}, and the journal now ends with step {file.last_step}")

    def _unreadable(self, error: Exception) -> str:
        return f"the journal {self._path} cannot be read: {_reason(error)}"


def _reason(error: Exception) -> str:
    return str((error.strerror or error) if isinstance(error, OSError) else error)
