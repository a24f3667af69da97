"""Folders that appear whole or not at all.

Decided here: a folder is made beside its final place, flushed to the disk file by file, and renamed; an older one of that name
goes only when the new one is there.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PARTIAL = ".partial"
_OLD = ".old"


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


def remove_leftovers(parent: Path) -> None:
    """Remove what killed processes left unfinished in a folder that is ours alone."""
    for path in parent.glob(".*"):
        if path.suffix in (_PARTIAL, _OLD):
            shutil.rmtree(path, ignore_errors=True)


def flush(path: Path) -> None:
    """Make a file or folder outlast a power cut. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
