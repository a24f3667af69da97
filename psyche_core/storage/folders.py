"""Folders that appear whole or not at all.

A folder is made beside its final place, flushed to the disk file by file, and renamed. An older one of that name is deleted only
when the new one is there. A download that takes long may be resumed after an interruption; after a week it is deleted.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_PARTIAL = ".partial"
_OLD = ".old"
_RESUMED = ".resume"
ABANDONED_SECONDS = 7 * 86_400
"""After so long nobody comes back to an interrupted download."""


@contextmanager
def whole_folder(directory: Path) -> Iterator[Path]:
    """A new folder to write into; it becomes `directory` when the block ends without an error. Raises OSError."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = directory.parent / f".{directory.name}.{uuid.uuid4().hex}{_PARTIAL}"
    partial.mkdir()
    try:
        yield partial
        publish(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def resumed_folder(directory: Path, *, keep_on: tuple[type[BaseException], ...]) -> Iterator[Path]:
    """Like `whole_folder`, and what an interrupted block wrote is there again at the next attempt.

    keep_on: exceptions after which it is kept; it is also kept when the process is killed. Where another process is at the same
    folder this is a plain `whole_folder`. Raises OSError.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = directory.parent / f".{directory.name}{_RESUMED}"
    _remove_abandoned(directory.parent, but=partial)
    partial.mkdir(exist_ok=True)
    with _locked(partial) as alone:
        if not alone:
            with whole_folder(directory) as private:
                yield private
            return

        try:
            yield partial
            publish(partial, directory)
        except keep_on:
            raise
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether the folder is ours alone among processes, for as long as the block runs. Without such locks it never is."""
    if sys.platform == "win32":
        yield False
        return

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield folder.is_dir() and folder.stat().st_ino == os.fstat(descriptor).st_ino  # or who had it has published it
    finally:
        os.close(descriptor)


def lock(handle: io.FileIO) -> bool:
    """Lock an open file for this process; False when another holds it. Always True where there are no such locks."""
    if sys.platform != "win32":
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False

    return True


def _remove_abandoned(parent: Path, *, but: Path) -> None:
    for path in parent.glob(f".*{_RESUMED}"):
        with contextlib.suppress(OSError):
            newest = max(each.stat().st_mtime for each in (path, *path.iterdir()))
            if path != but and time.time() - newest > ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def publish(partial: Path, directory: Path) -> None:
    """Flush a finished folder and rename it. Only between two renames is there none of that name. Raises OSError."""
    for path in sorted(partial.rglob("*")):
        flush(path)
    flush(partial)
    old = partial.with_suffix(_OLD)
    if directory.exists():
        directory.rename(old)
    try:
        partial.rename(directory)
    except OSError:
        if old.exists():
            old.rename(directory)
        raise
    flush(directory.parent)
    shutil.rmtree(old, ignore_errors=True)


def remove_partial(parent: Path, stem: str) -> None:
    """Remove what killed processes left unfinished of the folders `{stem}{number}` in `parent`; nobody may be at them now."""
    for path in parent.iterdir():
        number = path.name.removeprefix(f".{stem}").partition(".")[0]
        if path.name.startswith(f".{stem}") and number.isdecimal() and path.suffix == _PARTIAL:
            shutil.rmtree(path, ignore_errors=True)


def flush(path: Path) -> None:
    """Make a file or folder outlast a power cut. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
