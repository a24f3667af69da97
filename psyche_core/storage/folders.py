"""Folders that are written atomically: they appear complete or not at all.

A folder is written next to its final place, flushed to the disk file by file, and renamed. An older folder with this name is
deleted only after the new one is in place. A long download can be resumed after an interruption; after a week it is deleted.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_PARTIAL = ".partial"
_OLD = ".old"
_RESUMED = ".resume"
ABANDONED_SECONDS = 7 * 86_400
"""Age in seconds after which an interrupted download is deleted."""


@contextmanager
def whole_folder(directory: Path) -> Iterator[Path]:
    """Yield a new folder to write into. It becomes `directory` if the block ends without an error. Raises OSError."""
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
    """Like `whole_folder`, but the next attempt continues with the files that an interrupted block wrote.

    keep_on: exceptions after which the unfinished folder is kept. It is also kept if the process is killed. If another process is
    using the same unfinished folder, this is the same as `whole_folder`. Raises OSError.
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
    """Yield whether this process has the lock of the folder while the block runs. Always False on systems without such locks."""
    if sys.platform == "win32":
        yield False
        return

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # False if another process published the folder before we got the lock: then the folder is gone, or is another one.
        yield lock(descriptor) and folder.is_dir() and folder.stat().st_ino == os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


def lock(opened: int | io.FileIO) -> bool:
    """Lock an open file or folder for this process. Returns False if another process holds the lock; always True on Windows.

    The lock is on the file itself and ends with the process. filelock cannot do that: it makes a file for each lock.
    """
    if sys.platform != "win32":
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False

    return True


def _remove_abandoned(parent: Path, *, but: Path) -> None:
    for path in parent.glob(f".*{_RESUMED}"):
        with contextlib.suppress(OSError):
            newest = max(each.stat().st_mtime for each in (path, *path.iterdir()))
            if path != but and time.time() - newest > ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def write_inside(folder: Path, write: Callable[[Path], None]) -> None:
    """Call `write` with a path at which it creates a folder, and move that folder's files into `folder`. Raises OSError."""
    inner = folder / f".{uuid.uuid4().hex}"
    write(inner)
    for path in inner.iterdir():
        path.rename(folder / path.name)
    inner.rmdir()


def publish(partial: Path, directory: Path) -> None:
    """Flush a finished folder and rename it to `directory`. An old folder is first renamed, and deleted at the end.

    Between the two renames there is no folder with this name for a moment. Raises OSError.
    """
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
    """Remove the unfinished folders `{stem}{number}` that killed processes left in `parent`. No process may be using them."""
    for path in parent.iterdir():
        number = path.name.removeprefix(f".{stem}").partition(".")[0]
        if path.name.startswith(f".{stem}") and number.isdecimal() and path.suffix == _PARTIAL:
            shutil.rmtree(path, ignore_errors=True)


def flush(path: Path) -> None:
    """Write a file or folder to the disk, so that it survives a power failure. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
