"""Large files that live no longer than the program that made them, in one folder of the machine.

A program that uses a file holds a lock on it, which ends with the process however that ends. A file without a lock was left
behind. Such files are removed at the next start, except resumable ones: these are kept for a day, so that a process that was
killed during a long download finds its own again. Several programs share a folder but never each other's files. What is in a file
is up to the caller.
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
"""Room that is left on the disk for everybody else."""

SETTLED_SECONDS = 0.1
"""From then on another write has another time: clocks of file systems tick every few milliseconds."""

LARGE_BYTES = 256 * 1024
SPARE_BLOCKS = 2
"""Blocks of memory that a file keeps for the next reads: fresh ones cost as much as the reading."""


def default_folder() -> Path:
    """Where programs keep what they can do without, on this system, for this user."""
    return platformdirs.user_cache_path("psyche", appauthor=False)


class ScratchFile:
    """An open, locked file. Any thread may read and write; after `remove` and `close` both raise OSError."""

    def __init__(self, path: Path, handle: io.FileIO, *, resumable: bool) -> None:
        self.path = path
        self.resumable = resumable
        self._handle = handle
        self._turn = threading.Lock()
        self._spare: list[bytearray] = []

    def read(self, at: int, count: int) -> memoryview:
        """`count` bytes from offset `at`, in memory of their own. Raises OSError, also where the file ends before.

        The memory is used again once nobody holds the view or a part of it.
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
        """Equal stamps mean that nothing was written in between; None where that cannot be told yet. Raises OSError."""
        with self._positioned(0):
            status = os.fstat(self._handle.fileno())
        settled = time.time() - status.st_mtime > SETTLED_SECONDS
        return (status.st_mtime_ns, status.st_size) if settled else None

    def write(self, at: int, data: bytes) -> None:
        """Put all bytes at offset `at`. Raises OSError."""
        rest = memoryview(data)
        with self._positioned(at):
            while rest:
                rest = rest[self._handle.write(rest) or 0 :]

    def reserve(self, size: int, parts: Iterable[tuple[int, int]]) -> None:
        """Make the file `size` bytes long, with room on the disk for `parts` (offset, length) of it. Raises OSError."""
        parts = _joined(parts)
        with self._positioned(0):
            allocated = getattr(os.fstat(self._handle.fileno()), "st_blocks", 0) * 512
            needed = sum(length for _, length in parts) - allocated
            free = shutil.disk_usage(self.path.parent).free - SPARE_BYTES
            if needed > free:
                message = f"{needed} bytes are needed in {self.path.parent}, where {max(free, 0)} may be used"
                raise OSError(errno.ENOSPC, message)

            self._handle.truncate(size)
            if sys.platform == "linux":
                for at, length in parts:
                    os.posix_fallocate(self._handle.fileno(), at, length)

    def close(self) -> None:
        """Let go of the file and leave it where it is; idempotent."""
        with self._turn:
            self._spare.clear()
            self._handle.close()

    def remove(self) -> None:
        """Let go of the file and delete it; idempotent."""
        with self._turn:
            self._spare.clear()
            if not self._handle.closed:
                if sys.platform == "win32":  # nobody can delete an open file there
                    self._handle.close()
                self.path.unlink(missing_ok=True)
                self._handle.close()

    @property
    def closed(self) -> bool:
        """Whether it can be read and written no more."""
        return self._handle.closed

    @contextlib.contextmanager
    def _positioned(self, at: int) -> Iterator[None]:
        with self._turn:
            if self._handle.closed:
                raise OSError(errno.EBADF, f"the scratch file {self.path} is gone")

            self._handle.seek(at)
            yield


class Scratch:
    """The files of one program. folder: shared with others; None makes a private one, which goes with this object.

    Opening it creates the folder and removes what was left behind in it; both block. Raises ConfigError where that cannot be.
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
        """A new file. kind: a word; key: what a resumable file is found again by, a name of any length. Raises OSError."""
        path = self._folder / f"{_label(kind, key)}-{secrets.token_hex(8)}{SUFFIX}"
        unseen = path.with_suffix(".new")  # until it is locked nobody may take it for left behind
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
        """The newest resumable file of that kind and key that was left behind, None when there is none. Blocks."""
        if sys.platform == "win32":
            return None  # what is in use cannot be told there

        for path in sorted(self._folder.glob(f"{_label(kind, key)}-*{SUFFIX}"), key=_age):
            handle = _taken(path)
            if handle is not None:
                return self._note(ScratchFile(path, handle, resumable=True))

        return None

    def close(self) -> None:
        """Remove all files of this program; resumable ones stay for a day, but in a private folder. Blocks; idempotent."""
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
    """Whether nobody looks at it: only then does it let itself be resized."""
    try:
        last = block.pop()
    except BufferError:
        return False

    block.append(last)
    return True


def _memory(count: int) -> memoryview:
    """Fresh memory that comes from the system and goes back there at once, whichever thread lets go of it last."""
    if sys.platform != "linux":
        return memoryview(mmap.mmap(-1, count))

    memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # the kernel may have been built without
        memory.madvise(mmap.MADV_HUGEPAGE)  # a quarter of the time
    return memoryview(memory)


def _discard(folder: Path, files: list[ScratchFile]) -> None:
    """Remove a private folder and what is in it."""
    for file in files:
        file.close()
    shutil.rmtree(folder, ignore_errors=True)


def _label(kind: str, key: str) -> str:
    """The beginning of a file's name."""
    return f"resumable-{kind}-{hashlib.sha256(key.encode()).hexdigest()[:32]}" if key else kind


def _age(path: Path) -> float:
    """Seconds since the file was last written; none when it is gone."""
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime

    return 0.0


def _taken(path: Path) -> io.FileIO | None:
    """Open and lock a file that was left behind; None when it is in use, or gone meanwhile."""
    try:
        handle = io.FileIO(path, "r+")
    except OSError:
        return None

    try:
        if lock(handle) and path.stat().st_ino == os.fstat(handle.fileno()).st_ino:
            return handle
    except OSError:
        pass  # gone meanwhile: its owner has removed it
    handle.close()
    return None


def _joined(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same parts of a file in fewer, longer ones; empty ones left out."""
    found: list[tuple[int, int]] = []
    for at, length in sorted(parts):
        if found and sum(found[-1]) == at:
            found[-1] = (found[-1][0], found[-1][1] + length)
        elif length:
            found.append((at, length))
    return found
