"""Opens regular files and refuses everything else in their place.

Opening a named pipe can wait forever, a device has no end, and a folder is not a file. So the path is checked before it is
opened and again afterwards, and opening never waits. Anything but a regular file is refused with an OSError, so that the caller
reports it like any file that cannot be read. `read_entries` reads the lists that people write: one entry a line.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

from psyche_core.errors import UserError

MAX_LIST_BYTES: Final = 1 << 20

_UNWAITING: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegular(OSError):
    """A path leads to something other than a regular file. kind: what it is, with its article, such as "a folder"."""

    def __init__(self, path: str | os.PathLike[str], kind: str) -> None:
        super().__init__(errno.EINVAL, f"it is {kind}, expected a regular file", os.fspath(path))
        self.kind = kind


def regular(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """An `opener` for `open` and `io.FileIO` that opens regular files only. Raises NotRegular, and OSError as `os.open` does."""
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
    """Like `regular`; only the owner can read and write a file that it creates."""
    return regular(path, flags, 0o600)


def expect_regular(path: str | os.PathLike[str]) -> None:
    """Check a path without opening it. Raises NotRegular, and OSError if the path cannot be examined."""
    _expect(Path(path).stat(), path)


def read_entries(path: Path, what: str) -> tuple[tuple[int, str], ...]:
    """Read a text file with one entry a line. Empty lines, and what follows a #, are left out. Blocking.

    what: what the file is, for sentences, such as "the allow-list".
    Returns each entry with the number of its line, from 1. Bytes that are not UTF-8 become U+FFFD.

    Raises UserError when the file cannot be read, is no regular file, or is over MAX_LIST_BYTES.
    """
    try:
        with open(path, "rb", opener=regular) as file:
            data = file.read(MAX_LIST_BYTES + 1)
    except OSError as error:
        message = f"cannot read {what} {path}: {error.strerror}"
        raise UserError(message) from error

    if len(data) > MAX_LIST_BYTES:
        message = f"{what} {path} is over {MAX_LIST_BYTES} bytes; expected one entry a line"
        raise UserError(message)
    lines = enumerate(data.decode("utf-8", "replace").splitlines(), start=1)
    entries = ((number, line.partition("#")[0].strip()) for number, line in lines)
    return tuple((number, entry) for number, entry in entries if entry)


def _expect(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((kind for test, kind in _KINDS if test(found.st_mode)), "a special file")
        raise NotRegular(path, kind)
