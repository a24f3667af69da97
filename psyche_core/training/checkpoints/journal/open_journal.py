"""Adds results and rounds to a journal, and writes them to the disk.

- `add_result` and `add_applied` write to memory, `sync` writes to the disk. Synced data survives a crash of process or machine.
- A write error of the disk raises ModelError; the file stays unchanged, and the next `sync` tries again. If the data in memory
  exceeds the limit after such an error, the journal is abandoned: it accepts nothing before it has a new base, because a journal
  with a gap cannot be replayed.

`journal` decides which file is the journal and what it begins with.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from psyche_core.errors import ModelError, WireError
from psyche_core.training.checkpoints.journal.file import JournalFile
from psyche_core.training.checkpoints.journal_records import MAX_RECORD_BYTES, AppliedRound, Header, StoredResult

LEAST_LIMIT: Final = 64 * 2**20
"""Smallest limit of a journal in bytes: thousands of rounds of a small model."""


def default_limit(model_bytes: int) -> int:
    """Return the default limit of a journal in bytes: twice the size of the model, but at least LEAST_LIMIT.

    model_bytes: size of its float32 parameters. With 1-bit DisTrO the limit is hundreds of rounds; with AdamW, whose results have
    half the model's size, it is four results. A checkpoint has the model's size, so above this limit it is cheaper to save a
    checkpoint early than to make the journal longer.
    """
    return max(LEAST_LIMIT, 2 * model_bytes)


class OpenJournal:
    """The journal's file, and data that is not written to it yet. limit_bytes: see `full`."""

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self._path = path
        self._limit = limit_bytes
        self._file: JournalFile | None = None
        self._refused = False  # the last sync failed
        self._gap = False  # data that was not synced has been discarded
        self._suspended = False  # see `suspend`

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

    @property
    def pending(self) -> tuple[StoredResult, ...]:
        """Results of later steps than the last applied one."""
        return () if self._file is None else tuple(self._file.pending)

    def suspend(self) -> None:
        """Accept nothing before the next `begin` or `read`. The file stays as it is."""
        self._suspended = True

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

    def _adopt(self, file: JournalFile | None) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._refused, self._gap, self._suspended = file, False, False, False

    def _unreadable(self, error: Exception) -> str:
        return f"the journal {self._path} cannot be read: {_reason(error)}"


def _reason(error: Exception) -> str:
    return str((error.strerror or error) if isinstance(error, OSError) else error)
