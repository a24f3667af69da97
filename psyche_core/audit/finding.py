"""Published journals and checkpoints, as they are found in files and folders.

A journal is recognized by its first bytes, so published copies and a member's own files are found alike. A damaged end is not
used; the file says why and from which step. Payloads stay on the disk.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from psyche_core.audit.segments import Segment
from psyche_core.errors import InputError, ModelError, WireError
from psyche_core.regular_files import regular
from psyche_core.storage.checkpoint_names import MANIFEST_FILE
from psyche_core.training.checkpoints.journal.file import JournalFile
from psyche_core.training.checkpoints.journal_records import MAGIC
from psyche_core.training.checkpoints.manifest import CheckpointManifest, read_manifest

MAX_FILES: Final = 10_000
"""Files and folders that are looked at in one folder."""

MAX_FRAMES: Final = 1 << 22
"""Frames of one journal: 256 results and a round each, for more than 8,000 steps. Each needs some hundred bytes of memory."""


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint's folder and its manifest. Nothing was compared with the manifest yet."""

    folder: Path
    manifest: CheckpointManifest


@dataclass(frozen=True, slots=True)
class Found:
    """What is in the sources. notes: one sentence for each file that cannot be used, or only in part."""

    segments: tuple[Segment, ...]
    checkpoints: tuple[FoundCheckpoint, ...]
    notes: tuple[str, ...]


def find(sources: Sequence[Path]) -> Found:
    """Read all journals in the sources, and the manifests of checkpoints. sources: files, and folders that hold such.

    A file is read once, also if it is named twice. Raises InputError for a source that does not exist, a file that is no journal,
    or sources without any journal.
    """
    notes: list[str] = []
    segments: list[Segment] = []
    manifests: list[FoundCheckpoint] = []
    for path in dict.fromkeys(path for source in sources for path in _listed(source)):
        if path.is_dir():
            manifests += _checkpoint_in(path, notes)
        elif (segment := _segment_in(path, notes, named=path in sources)) is not None:
            segments.append(segment)
    if not segments:
        where = ", ".join(map(str, sources))
        why = "".join(f"; {note}" for note in notes)
        message = f"there is no journal that can be read in {where}{why}; members publish them with --publish-journal"
        raise InputError(message)

    return Found(tuple(segments), tuple(manifests), tuple(notes))


def checkpoints_in(folder: Path) -> tuple[FoundCheckpoint, ...]:
    """Return the checkpoint in a folder, or those in the folders inside it, lowest step first. Raises InputError."""
    notes: list[str] = []
    found = [each for path in _listed(folder) if path.is_dir() for each in _checkpoint_in(path, notes)]
    if not found and notes:
        raise InputError(notes[0])
    return tuple(sorted(found, key=lambda each: each.manifest.step))


@contextmanager
def opened(segment: Segment) -> Iterator[JournalFile]:
    """Open a segment's file again, for its results and payloads. Raises InputError if it has changed since it was found."""
    try:
        file = JournalFile.view(io.FileIO(segment.path, "r", opener=regular), most_frames=MAX_FRAMES)
    except (OSError, WireError) as error:
        raise InputError(_unreadable(segment.path, error)) from error

    with contextlib.closing(file):
        if (file.header, tuple(file.rounds)) != (segment.header, segment.rounds):
            message = f"{segment.path} has changed while it was read; audit a copy of it"
            raise InputError(message)
        yield file


def _listed(source: Path) -> list[Path]:
    """The source itself, and what is in it if it is a folder."""
    try:
        if not source.is_dir():
            source.stat()
            return [source]

        inside = sorted(source.iterdir())
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        reason = (isinstance(error, OSError) and error.strerror) or error
        message = f"{source} cannot be read: {reason}; give journals, or folders with journals"
        raise InputError(message) from error

    if len(inside) > MAX_FILES:
        message = f"{source} holds {len(inside):,} files, over the limit of {MAX_FILES:,}; give the journals themselves"
        raise InputError(message)

    return [source, *inside]


def _segment_in(path: Path, notes: list[str], *, named: bool) -> Segment | None:
    """The journal in a file; None, with a note, if it cannot be read. named: it must be a journal. Raises InputError."""
    try:
        file = io.FileIO(path, "r", opener=regular)
    except OSError as error:
        if named:
            raise InputError(_unreadable(path, error)) from error
        return None  # a pipe or the like in a folder

    with contextlib.closing(file):
        if file.read(len(MAGIC)) != MAGIC:
            if named:
                message = f"{path} is not a journal; members publish journals with --publish-journal"
                raise InputError(message)
            return None

        size = os.fstat(file.fileno()).st_size
        file.seek(0)
        try:
            read = JournalFile.view(file, most_frames=MAX_FRAMES)
        except (OSError, WireError) as error:
            notes.append(_unreadable(path, error))
            return None

        damage = read.damage
        if damage:
            lost = f"up to step {read.lost_step} " if read.lost_step is not None and read.lost_step > read.last_step else ""
            notes.append(f"{path} is damaged after step {read.last_step}: {damage}; what comes after it {lost}is not used")
        return Segment(path=path, header=read.header, rounds=tuple(read.rounds), size=size, damage=damage)


def _checkpoint_in(folder: Path, notes: list[str]) -> Iterable[FoundCheckpoint]:
    if not (folder / MANIFEST_FILE).exists():
        return ()

    try:
        manifest = read_manifest(folder)
    except ModelError as error:
        notes.append(str(error))
        return ()
    return () if manifest is None else (FoundCheckpoint(folder, manifest),)


def _unreadable(path: Path, error: Exception) -> str:
    return f"{path} cannot be used: {(isinstance(error, OSError) and error.strerror) or error}"
