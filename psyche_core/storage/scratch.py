"""Large temporary files in one folder of the machine, which exist only as long as the program that made them.

A program that uses a file holds a lock on it. The system releases the lock when the process ends in any way, so a file without a
lock is left over from an earlier process. Such files are removed at the next start, except resumable ones: these are kept for a
day, so that a process that was killed during a long download finds its file again. Several programs may share a folder but never
use each other's files. The caller decides what is in a file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import mmap
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

import platformdirs

from psyche_core.errors import ConfigError
from psyche_core.storage.folders import lock

SUFFIX = ".scratch"
RESUMABLE_SECONDS = 24 * 3600.0
SPARE_BYTES = 64 * 2**20
"""Free space that is always left on the disk for other programs."""

SETTLED_SECONDS = 0.1
"""Age of the last write after which a new write certainly gets another time: file systems update times every few milliseconds."""

LARGE_BYTES = 256 * 1024
SPARE_BLOCKS = 2
"""Blocks of memory that a file keeps for the next reads, because allocating new memory takes as long as reading."""


def default_folder() -> Path:
    """Return the cache folder of this user on this system."""
    return platformdirs.user_cache_path("psyche", appauthor=False)


class ScratchFile:
    """An open, locked file. Any thread may read and write. After `remove` or `close`, reading and writing raise OSError."""

    def __init__(self, path: Path, handle: io.FileIO, *, resumable: bool) -> None:
        self.path = path
        self.resumable = resumable
        self._handle = handle
        self._turn = threading.Lock()
        self._spare: list[bytearray] = []

    def read(self, at: int, count: int) -> memoryview:
        """Return `count` bytes from offset `at`, as a view of memory that nothing else uses.

        The memory is used for other reads when no view of it exists any more. Raises OSError, also if the file is too short.
        """
        with self._positioned(at):
            data = self._block(count)
            done = 0
            while done < count:
                got = self._handle.readinto(data[done:])
                if not got:
                    raise OSError(errno.EIO, f"the scratch file {self.path} ends early: something has shortened it")

                done += got
            return data

    def _block(self, count: int) -> memoryview:
        if count < LARGE_BYTES:
            return memoryview(bytearray(count))

        free = [block for block in self._spare if _is_free(block)]
        for block in free:
            if len(block) >= count:
                return memoryview(block)[:count]
        if len(self._spare) == SPARE_BLOCKS and not free:
            return _memory(count)

        if len(self._spare) == SPARE_BLOCKS:
            self._spare = [block for block in self._spare if block is not free[0]]
        self._spare.append(bytearray(count))
        return memoryview(self._spare[-1])

    def stamp(self) -> object | None:
        """Return a value that is equal if nothing was written in between; None if this is not certain yet. Raises OSError."""
        with self._positioned(0):
            status = os.fstat(self._handle.fileno())
        settled = time.time() - status.st_mtime > SETTLED_SECONDS
        return (status.st_mtime_ns, status.st_size) if settled else None

    def write(self, at: int, data: bytes) -> None:
        """Write all bytes at offset `at`. Raises OSError."""
        rest = memoryview(data)
        with self._positioned(at):
            while rest:
                rest = rest[self._handle.write(rest) or 0 :]

    def reserve(self, size: int, parts: Iterable[tuple[int, int]]) -> None:
        """Make the file `size` bytes long, and reserve space on the disk for `parts` (offset, length). Raises OSError."""
        parts = _joined(parts)
        with self._positioned(0):
            allocated = getattr(os.fstat(self._handle.fileno()), "st_blocks", 0) * 512
            needed = sum(length for _, length in parts) - allocated
            free = shutil.disk_usage(self.path.parent).free - SPARE_BYTES
            if needed > free:
                message = f"{needed} bytes are needed in {self.path.parent}, where {max(free, 0)} are free"
                raise OSError(errno.ENOSPC, message)

            self._handle.truncate(size)
            if sys.platform == "linux":
                for at, length in parts:
                    os.posix_fallocate(self._handle.fileno(), at, length)

    def close(self) -> None:
        """Close the file without deleting it. Idempotent."""
        with self._turn:
            self._spare.clear()
            self._handle.close()

    def remove(self) -> None:
        """Close the file and delete it. Idempotent."""
        with self._turn:
            self._spare.clear()
            if not self._handle.closed:
                if sys.platform == "win32":  # Windows cannot delete an open file
                    self._handle.close()
                self.path.unlink(missing_ok=True)
                self._handle.close()

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._handle.closed

    @contextlib.contextmanager
    def _positioned(self, at: int) -> Iterator[None]:
        with self._turn:
            if self._handle.closed:
                raise OSError(errno.EBADF, f"the scratch file {self.path} is gone")

            self._handle.seek(at)
            yield


class Scratch:
    """The scratch files of one program.

    folder: may be shared with other programs; None creates a private one, which is deleted together with this object. The
    constructor creates the folder and removes leftover files in it; both block. Raises ConfigError if that is not possible.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._files: list[ScratchFile] = []
        self._private: weakref.finalize[[Path, list[ScratchFile]], Scratch] | None = None
        try:
            if folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="psyche-"))
                self._private = weakref.finalize(self, _discard, self._folder, self._files)
            else:
                self._folder = folder.expanduser().absolute() / "scratch"
                self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"--cache-dir {folder}: the folder cannot be used ({error.strerror}); name one that can be written to"
            raise ConfigError(message) from error

        self._clear_up()

    def create(self, kind: str, key: str = "", *, resumable: bool = False) -> ScratchFile:
        """Create a file. Raises OSError.

        kind: a word, part of the file's name. key: name of any length by which `adopt` finds a resumable file again.
        """
        path = self._folder / f"{_label(kind, key)}-{secrets.token_hex(8)}{SUFFIX}"
        unseen = path.with_suffix(".new")  # until it is locked, other programs must not see it as a leftover file
        handle = io.FileIO(unseen, "x+")
        lock(handle)
        if sys.platform == "win32":
            handle.close()
            unseen.rename(path)
            handle = io.FileIO(path, "r+")
        else:
            unseen.rename(path)
        return self._note(ScratchFile(path, handle, resumable=resumable))

    def adopt(self, kind: str, key: str) -> ScratchFile | None:
        """Return the newest leftover resumable file with this kind and key, or None if there is none. Blocks."""
        if sys.platform == "win32":
            return None  # there are no locks that show whether a file is in use

        for path in sorted(self._folder.glob(f"{_label(kind, key)}-*{SUFFIX}"), key=_age):
            handle = _taken(path)
            if handle is not None:
                return self._note(ScratchFile(path, handle, resumable=True))

        return None

    def close(self) -> None:
        """Close all files of this program and remove those that are not resumable. Blocks. Idempotent.

        Resumable files stay for a day, except in a private folder, which is removed completely.
        """
        if self._private is not None:
            self._private()
        for file in self._files:
            if file.resumable:
                file.close()
            else:
                file.remove()
        self._files.clear()

    def _note(self, file: ScratchFile) -> ScratchFile:
        self._files[:] = [known for known in self._files if not known.closed]
        self._files.append(file)
        return file

    def _clear_up(self) -> None:
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path.name.startswith("resumable-") and _age(path) < RESUMABLE_SECONDS:
                continue

            handle = _taken(path)
            if handle is not None:
                ScratchFile(path, handle, resumable=False).remove()
        for path in self._folder.glob("*.new"):
            if _age(path) > RESUMABLE_SECONDS:
                with contextlib.suppress(OSError):
                    path.unlink()


def _is_free(block: bytearray) -> bool:
    """Whether there is no view of this block. Python allows resizing a bytearray only then."""
    try:
        last = block.pop()
    except BufferError:
        return False

    block.append(last)
    return True


def _memory(count: int) -> memoryview:
    """Return new memory directly from the system. It is returned to the system as soon as the last view of it is deleted."""
    if sys.platform != "linux":
        return memoryview(mmap.mmap(-1, count))

    memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # the kernel may have been built without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)  # first use then takes a quarter of the time
    return memoryview(memory)


def _discard(folder: Path, files: list[ScratchFile]) -> None:
    """Close the files of a private folder and remove the folder with its content."""
    for file in files:
        file.close()
    shutil.rmtree(folder, ignore_errors=True)


def _label(kind: str, key: str) -> str:
    """Return the first part of a file's name."""
    return f"resumable-{kind}-{hashlib.sha256(key.encode()).hexdigest()[:32]}" if key else kind


def _age(path: Path) -> float:
    """Return the seconds since the file was last written, or 0 if it does not exist any more."""
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime

    return 0.0


def _taken(path: Path) -> io.FileIO | None:
    """Open and lock a leftover file. Returns None if it is in use or does not exist any more."""
    try:
        handle = io.FileIO(path, "r+")
    except OSError:
        return None

    try:
        if lock(handle) and path.stat().st_ino == os.fstat(handle.fileno()).st_ino:
            return handle
    except OSError:
        pass  # its owner has removed it meanwhile
    handle.close()
    return None


def _joined(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same parts of a file with adjacent ones joined and empty ones left out."""
    found: list[tuple[int, int]] = []
    for at, length in sorted(parts):
        if found and sum(found[-1]) == at:
            found[-1] = (found[-1][0], found[-1][1] + length)
        elif length:
            found.append((at, length))
    return found
