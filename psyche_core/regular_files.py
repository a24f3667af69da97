"""Opens regular files and refuses everything else in their place.

Opening a named pipe can wait for ever, a device has no end, a folder is no file at all. So the path is checked before it is
opened and again afterwards, and opening never waits. Anything but a regular file is refused with an OSError, so that the caller
reports it like any file that cannot be read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

_UNWAITING: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegular(OSError):
    """Something else is in a file's place. kind: what it is, with its article."""

    def __init__(self, path: str | os.PathLike[str], kind: str) -> None:
        super().__init__(errno.EINVAL, f"it is {kind}, expected a regular file", os.fspath(path))
        self.kind = kind


def regular(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """An `opener` for `open` and `io.FileIO` that takes regular files only. Raises NotRegular, and OSError as `os.open` does."""
    with contextlib.suppress(FileNotFoundError):
        expect_regular(path)
    descriptor = os.open(path, flags | _UNWAITING, mode)
    try:
        _expect(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def regular_private(path: str | os.PathLike[str], flags: int) -> int:
    """Like `regular`; a file that is made is for its owner alone."""
    return regular(path, flags, 0o600)


def expect_regular(path: str | os.PathLike[str]) -> None:
    """Look at a file without opening it. Raises NotRegular, and OSError where nothing can be looked at."""
    _expect(Path(path).stat(), path)


def _expect(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((kind for test, kind in _KINDS if test(found.st_mode)), "no file with content")
        raise NotRegular(path, kind)
