"""Copies finished parts of a journal to a public folder: `psyche audit` recomputes the run's weights from them.

A journal starts again with each checkpoint, and only the journal before it is kept. So `hold` opens the journal before it starts
again, and `publish` copies it later. The copy's name says run, instance, generation, steps, and the history of the last step: if
a coordinator was restored from an older state, the same steps are there twice. A published file appears whole or not at all, and
is never replaced or deleted. If a journal continues after its copy was made, as after a restart in mid-epoch, the next copy has
the same first step and a later last one.
"""

from __future__ import annotations

import contextlib
import io
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import BinaryIO, Final

from psyche_core.errors import ModelError, WireError
from psyche_core.regular_files import regular
from psyche_core.storage.checkpoint_names import name_of
from psyche_core.storage.disk_errors import disk_error_in
from psyche_core.storage.folders import flush
from psyche_core.training.checkpoints.journal.file import JournalFile
from psyche_core.training.checkpoints.journal.journal import Journal
from psyche_core.training.checkpoints.journal_records import NO_DIGEST, AppliedRound, Header

SUFFIX: Final = ".journal"
"""End of the names of published journals."""

_COPY_BYTES = 1 << 20
_INSTANCE_DIGITS = 16
_HISTORY_DIGITS = 8


class SegmentDiffers(ModelError):
    """The folder has a file of this name with other content. That file is not changed."""


@dataclass(frozen=True, slots=True)
class HeldSegment:
    """A journal's file that is open for reading, even if the journal is replaced. size: number of bytes that belong to it."""

    file: io.FileIO
    size: int

    def close(self) -> None:
        """Close the file. Idempotent."""
        self.file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSegment:
    """A file that was published. first_step, last_step: of its rounds. size: in bytes. seconds: how long copying took."""

    path: Path
    first_step: int
    last_step: int
    size: int
    seconds: float


def segment_name(run_id: str, header: Header, last: AppliedRound) -> str:
    """Return the file name of a published journal. last: its last round; if its history is unknown, the name omits it."""
    steps = f"steps{header.base_step + 1}-{last.step}"
    if last.history != NO_DIGEST:
        steps += f"-{last.history.hex()[:_HISTORY_DIGITS]}"
    return f"{name_of(run_id)}-{header.instance.hex()[:_INSTANCE_DIGITS]}-g{header.generation}-{steps}{SUFFIX}"


def hold(journal: Journal) -> HeldSegment | None:
    """Open a journal that is about to start again. Returns None if it has no rounds. Raises ModelError."""
    header = journal.header
    if header is None or journal.last_step == header.base_step:
        return None

    with contextlib.suppress(ModelError):  # what is synced is published
        journal.sync()
    return hold_file(journal.path)


def hold_file(path: Path) -> HeldSegment | None:
    """Open the file of a journal, or of the one before. Returns None if there is none. Raises ModelError."""
    try:
        file = io.FileIO(path, "r", opener=regular)
    except FileNotFoundError:
        return None
    except OSError as error:
        message = f"the journal {path} is not published: {error.strerror or error}"
        raise ModelError(message) from error

    return HeldSegment(file, os.fstat(file.fileno()).st_size)


def publish(held: HeldSegment, folder: Path, run_id: str, *, instance: bytes) -> PublishedSegment | None:
    """Copy a held journal into a folder, which is made if necessary, and close it.

    instance: of the run (32 bytes). Returns None if there is nothing to publish: it has no rounds, is of another run, or is
    already in the folder. Raises SegmentDiffers, and ModelError for a file that cannot be read or a folder that cannot be
    written.
    """
    started = perf_counter()
    try:
        with contextlib.closing(JournalFile.view(held.file, size=held.size)) as read:
            header, last = read.header, read.last_step
            if header.instance != instance or last == header.base_step:
                return None

            folder.mkdir(parents=True, exist_ok=True)
            path = folder / segment_name(run_id, header, read.rounds[-1])
            if not path.exists():
                _copy(held.file, read.size, path)
            elif _equal(held.file, read.size, path):
                return None
            else:
                message = (
                    f"the journal of steps {header.base_step + 1} to {last} was not published: {path} is there with other "
                    "content and stays as it is. If another member wrote it, give each member a folder of its own; if not, move "
                    "that file away"
                )
                raise SegmentDiffers(message)
    except (OSError, WireError) as error:
        message = f"a journal was not published in {folder}: {disk_error_in(error) or error}"
        raise ModelError(message) from error

    seconds = perf_counter() - started
    return PublishedSegment(path=path, first_step=header.base_step + 1, last_step=last, size=read.size, seconds=seconds)


def _copy(source: BinaryIO | io.FileIO, size: int, path: Path) -> None:
    """Write the first `size` bytes of `source` to a new file, which appears under its name when it is complete."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with partial.open("xb") as target:
            source.seek(0)
            left = size
            while left:
                part = source.read(min(left, _COPY_BYTES))
                if not part:
                    message = "it became shorter while it was copied"
                    raise WireError(message)
                target.write(part)
                left -= len(part)
            target.flush()
            os.fsync(target.fileno())
        try:
            os.link(partial, path)  # unlike a rename, this never replaces a file
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            partial.rename(path)
        flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _equal(source: io.FileIO, size: int, path: Path) -> bool:
    """Whether a file consists of the first `size` bytes of `source`."""
    with open(path, "rb", opener=regular) as there:
        if os.fstat(there.fileno()).st_size != size:
            return False

        source.seek(0)
        while part := there.read(_COPY_BYTES):
            if source.read(len(part)) != part:
                return False
    return True
