"""The rounds a client applied since its last checkpoint, in a file beside it. They restore the exact masters after any crash.

`apply` is exact and payloads are small, so a checkpoint and the payloads applied since give the masters of the last round, bit
for bit. A journal has one base, a step with the full digest of its masters, until `begin` gives it another; the caller calls
`begin` with each checkpoint.

- `add_result` and `add_applied` write to memory, `sync` to the disk: what was synced survives any crash of process or machine.
- A new journal is written beside the old one, flushed and renamed, so there is always a whole one.
- A file that cannot be read to its end is used as far as it can be read. A journal of another run, generation or version is
  renamed, not deleted.
- A write error of the disk is one ModelError; the file stays as it was, and the next `sync` tries again. Only when more waits in
  memory than the limit allows is the journal given up. It then takes nothing before the next `begin`, because a journal with a
  gap is of no use.
- One process at a time: it holds a lock on a file beside it, which ends with the process.

Not thread-safe: one worker thread calls it. The caller decides what is applied, when a checkpoint is due, and which masters are
right. The format is in `journal_records`, applying it again in `journal_replay`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from psyche_core.errors import ConfigError, ModelError, WireError
from psyche_core.regular_files import NotRegular, expect_regular, regular
from psyche_core.storage.folders import flush, lock
from psyche_core.training.checkpoints.checkpoint import abandoned_name, name_of
from psyche_core.training.checkpoints.journal_file import JournalFile, named
from psyche_core.training.checkpoints.journal_records import MAX_RECORD_BYTES, AppliedRound, Header, StoredResult

LEAST_LIMIT: Final = 64 * 2**20
"""Bytes that a journal may always have: thousands of rounds of a small model."""

_COPY_BYTES: Final = 8 * 2**20
"""Most that a copy keeps in memory, and a payload."""


def default_limit(model_bytes: int) -> int:
    """How large a journal may become: twice the model, at least LEAST_LIMIT. model_bytes: of its float32 parameters.

    With 1-bit DisTrO that is hundreds of rounds; with AdamW, whose results have half the model's size, four results. A checkpoint
    has the model's size, so beyond that it is cheaper to save one early than to write on.
    """
    return max(LEAST_LIMIT, 2 * model_bytes)


def journal_path(folder: Path, run_id: str) -> Path:
    """The journal of a run in our folder of checkpoints."""
    return folder / f"{name_of(run_id)}-journal.bin"


def claim(folder: Path, run_id: str) -> io.FileIO:
    """Make a run's journal this process's alone, until what is returned is closed; makes the folder, reads nothing of it.

    Raises ConfigError when another process has it, when the folder cannot be written, and when something else than a file is in
    the place of one of the journal's.
    """
    path = journal_path(folder, run_id)
    guard = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        guard = io.FileIO(path.with_name(f".{path.name}.lock"), "a", opener=regular)
        for each in (path, _replacement_path(path)):
            with contextlib.suppress(FileNotFoundError):
                expect_regular(each)
        alone = lock(guard)
    except NotRegular as error:
        if guard is not None:
            guard.close()
        message = f"the journal {path} cannot be used: {error.filename} is {error.kind}, expected a regular file; move it away"
        raise ConfigError(message) from error
    except OSError as error:
        if guard is not None:
            guard.close()
        message = f"the journal {path} cannot be opened: {_reason(error)}; give a folder that can be written"
        raise ConfigError(message) from error

    if not alone:
        guard.close()
        message = f"another process keeps the journal {path}; give each client a folder of checkpoints of its own"
        raise ConfigError(message)

    return guard


_REWOUND = 2
"""Results of one slot and step that a return leaves: those of the two newest histories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a journal holds. rounds: steps base_step + 1, base_step + 2, … without a gap; pending: results of later steps.

    payload: the bytes of a result by their SHA-256; reads the journal's file, as long as the journal is open and not begun anew.
    Raises ModelError.
    """

    header: Header
    rounds: tuple[AppliedRound, ...]
    pending: tuple[StoredResult, ...]
    payload: Callable[[bytes], bytes]

    @property
    def last_step(self) -> int:
        """The last step that can be replayed; the base's when no round was applied since."""
        return self.header.base_step + len(self.rounds)


class Journal:
    """See the module; made by `open`. A context manager that closes it."""

    def __init__(self, path: Path, guard: io.FileIO, *, instance: bytes, limit_bytes: int, tell: Callable[[str], None]) -> None:
        self._path = path
        self._guard = guard
        self._instance = instance
        self._limit = limit_bytes
        self._tell = tell
        self._file: JournalFile | None = None
        self._refused = False  # the last sync failed
        self._gap = False  # what waited was given up

    @classmethod
    def open(
        cls,
        folder: Path,
        run_id: str,
        *,
        instance: bytes,
        limit_bytes: int,
        tell: Callable[[str], None] = lambda _: None,
        guard: io.FileIO | None = None,
    ) -> Self:
        """Take the journal of a run for this process; call `read` or `begin` next.

        instance: the run's (32 bytes); limit_bytes: see `full`; tell: takes a sentence when something on the disk is not as it
        was written; guard: of `claim`, None to claim it now. Raises what `claim` does.
        """
        taken = claim(folder, run_id) if guard is None else guard
        return cls(journal_path(folder, run_id), taken, instance=instance, limit_bytes=limit_bytes, tell=tell)

    def __enter__(self) -> Self:
        """The journal itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Let go of file and lock; what was not synced is lost. Idempotent."""
        self._adopt(None)
        self._guard.close()

    # ------------------------------------------------------------------------------------------------------------ figures

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._path

    @property
    def header(self) -> Header | None:
        """The base it goes on from; None before `begin`, or a `read` that found one."""
        return None if self._file is None else self._file.header

    @property
    def last_step(self) -> int | None:
        """The last applied step it was given, synced or not; the base's when there is none; None without a base."""
        return None if self._file is None else self._file.last_step

    def set_limit(self, limit_bytes: int) -> None:
        """Another limit, see `full`."""
        self._limit = limit_bytes

    @property
    def size(self) -> int:
        """Bytes of the file, with what waits for `sync`."""
        return 0 if self._file is None else self._file.size

    @property
    def full(self) -> bool:
        """Whether it is over its limit: time for a checkpoint and `begin`. It goes on taking what it is given."""
        return self.size > self._limit

    @property
    def broken(self) -> bool:
        """Whether it takes nothing before the next `begin`: there is no base, or a round was given up on a full disk."""
        return self._file is None or self._gap

    # ------------------------------------------------------------------------------------------------------------ writing

    def begin(self, base_step: int, base_digest: bytes, generation: int) -> None:
        """Replace the journal by one with a new base. base_digest: full digest (32 bytes) of the masters after that step.

        Results of the same generation and later steps go with it: a checkpoint may be saved while they are on their way. Delete
        the older checkpoint only afterwards. Raises ModelError when the disk refuses; the old journal stays then, and goes on.
        """
        header = Header(instance=self._instance, generation=generation, base_step=base_step, base_digest=base_digest)
        old = self._file
        with self._replacement(header) as new:
            if old is not None and not self._gap and old.header.generation == generation:
                _copy(old, (each for each in old.pending if each.step > base_step), new)

    def add_result(self, result: StoredResult, payload: bytes) -> bool:
        """Add a verified result; False when it is there already. payload: what `result.payload_hash` is the SHA-256 of.

        Raises ModelError for a journal that is broken, for a payload of another hash, and for values out of range.
        """
        file = self._usable()
        if file.has_result(result.commitment):
            return False

        if not file.has_payload(result.payload_hash):
            if hashlib.sha256(payload).digest() != result.payload_hash:
                message = f"a result of step {result.step} is not what its hash names; the journal {self._path} does not take it"
                raise ModelError(message)

            self._make_room(len(payload))
            file.add_payload(payload, result.payload_hash)
        self._add(file, result)
        return True

    def add_applied(self, applied: AppliedRound) -> None:
        """Add a round that was applied; its payloads must have been added with their results.

        Raises ModelError for a journal that is broken, for a step that does not follow the last one, for a payload that is not
        here, and for values out of range.
        """
        self._add(self._usable(), applied)

    def sync(self) -> None:
        """Bring what was added to the disk; afterwards it outlasts a power cut. Raises ModelError; then call it again later."""
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
        """Keep only rounds up to `step`: the run went back. generation: the run's now; None: as it was.

        Results of later steps stay where the generation does: a coordinator that was restored from an older state may yet decide
        that they are accepted, and then nobody else may have them any more. Those of another generation go.

        Raises ModelError when the base is later than that step, or the disk refuses; nothing has changed then.
        """
        file = self._file
        if file is None:
            message = f"the journal {self._path} holds nothing to go back in"
            raise ModelError(message)

        if step < file.header.base_step:
            message = (
                f"the journal {self._path} begins with step {file.header.base_step}, and the run went back to step {step}: "
                "an older checkpoint is needed"
            )
            raise ModelError(message)

        self.sync()
        header = file.header if generation is None else replace(file.header, generation=generation)
        later = _newest(file.records(), after=step) if header.generation == file.header.generation else set()
        with self._replacement(header) as new:
            _copy(file, (each for each in file.records() if each.step <= step or each in later), new)

    # ------------------------------------------------------------------------------------------------------------ reading

    def read(self, *, generation: int | None = None) -> Recovered | None:
        """What the journal holds on the disk, None when there is none to go on with; afterwards it takes what comes next.

        A torn or damaged end is told and cut off. A journal of another run or version, or of another generation where one is
        given, is told and set aside. Raises ModelError when the disk does not give it.
        """
        self._adopt(None)
        try:
            file = JournalFile.load(self._path)
        except FileNotFoundError:
            return None
        except WireError as error:
            self._set_aside(str(error))
            return None
        except OSError as error:
            raise ModelError(self._unreadable(error)) from error

        header = file.header
        if header.instance != self._instance or generation not in (None, header.generation):
            file.close()
            was = f"generation {header.generation} of the run, which is in generation {generation}"
            self._set_aside("it is of another run" if header.instance != self._instance else f"it is of {was}")
            return None

        if file.lost:
            self._tell(
                f"the journal {self._path} ended in {file.lost} bytes that are no whole records; they are cut off, "
                f"and it counts up to step {file.last_step}"
            )
        self._adopt(file)
        found = Recovered(header=header, rounds=tuple(file.rounds), pending=tuple(file.pending), payload=self.payload)
        file.rounds = []  # they are the caller's now
        return found

    def payload(self, payload_hash: bytes) -> bytes:
        """The bytes with this SHA-256. Raises ModelError when the journal does not hold them (any more)."""
        try:
            if self._file is not None:
                return self._file.payload(payload_hash)
        except KeyError:
            pass
        except (OSError, WireError) as error:
            raise ModelError(self._unreadable(error)) from error

        message = f"the journal {self._path} does not hold payload {payload_hash.hex()[:16]}…"
        raise ModelError(message)

    # ------------------------------------------------------------------------------------------------------------ inside

    def _usable(self) -> JournalFile:
        if self._file is None or self._gap:
            reason = "has a gap, since its disk was full for too long" if self._gap else "has no base yet"
            message = f"the journal {self._path} {reason}; it begins anew with the next checkpoint"
            raise ModelError(message)

        return self._file

    def _add(self, file: JournalFile, record: StoredResult | AppliedRound) -> None:
        self._make_room(MAX_RECORD_BYTES)
        try:
            file.add(record)
        except WireError as error:
            message = f"the journal {self._path} does not take a record of step {record.step}: {error}"
            raise ModelError(message) from error

    def _make_room(self, count: int) -> None:
        """Give up what waits when a disk that refuses would have it grow without end. Raises ModelError then."""
        file = self._usable()
        if self._refused and file.waiting + count > self._limit:
            file.drop_waiting()
            self._gap = True
            self._usable()

    @contextmanager
    def _replacement(self, header: Header) -> Iterator[JournalFile]:
        """A new file to fill, which takes the place of the journal's when the block ends. Raises ModelError."""
        path = _replacement_path(self._path)
        try:
            new = JournalFile.create(path, header)
            try:
                yield new
                new.sync()
                os.replace(path, self._path)  # noqa: PTH105 - it replaces on every system
            except BaseException:
                new.close()
                with contextlib.suppress(OSError):
                    path.unlink()
                raise
        except (OSError, WireError) as error:
            message = f"the journal {self._path} could not begin anew with step {header.base_step}: {_reason(error)}"
            raise ModelError(message) from error

        self._adopt(new)
        try:
            flush(self._path.parent)
        except OSError as error:
            raise ModelError(self._unreadable(error)) from error

    def _adopt(self, file: JournalFile | None) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._refused, self._gap = file, False, False

    def _set_aside(self, reason: str) -> None:
        target = abandoned_name(self._path)
        try:
            self._path.rename(target)
        except OSError as error:
            raise ModelError(self._unreadable(error)) from error

        self._tell(f"the journal {self._path} is not used: {reason}; it lies in {target.name} now")

    def _unreadable(self, error: Exception) -> str:
        return f"the journal {self._path} cannot be read: {_reason(error)}"


def _replacement_path(path: Path) -> Path:
    """Where a journal's successor is written until it is whole."""
    return path.with_name(f".{path.name}.new")


def _newest(records: Iterable[StoredResult | AppliedRound], *, after: int) -> set[StoredResult | AppliedRound]:
    """The newest results of each slot and later step: a run that goes back again and again leaves no more than these."""
    found: dict[tuple[int, int], deque[StoredResult]] = {}
    for each in records:
        if isinstance(each, StoredResult) and each.step > after:
            found.setdefault((each.step, each.slot), deque(maxlen=_REWOUND)).append(each)
    return {each for kept in found.values() for each in kept}


def _copy(source: JournalFile, records: Iterable[StoredResult | AppliedRound], target: JournalFile) -> None:
    """Records and the payloads they name. Raises OSError, WireError."""
    for record in records:
        for each in named(record):
            if not target.has_payload(each):
                target.add_payload(source.payload(each), each)
        target.add(record)
        if target.waiting > _COPY_BYTES:
            target.sync()


def _reason(error: Exception) -> str:
    return str((error.strerror or error) if isinstance(error, OSError) else error)
