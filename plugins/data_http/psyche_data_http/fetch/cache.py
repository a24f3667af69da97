"""Disk cache of sequences, so that a restarted client, or another one on this machine, need not fetch them again.

There is one file per sequence, because a client's share is scattered and nothing beyond the share should be fetched:

    <folder>/http-blocks/<digest of the remote file>/<number of the sequence>      16 bytes BLAKE2b | tokens

The remote file's digest covers its address, its size, its validators and how it is cut into sequences. A file without
validators is not cached, because changed content could not be noticed. The checksum also covers the name and is checked on each
read; a damaged, truncated or misplaced file is deleted and fetched again. Files appear by renaming, so several processes may
share a folder.

When there is more than `limit`, the least recently used files are deleted. Each process checks after it has written a sixteenth
of the limit, so N processes may exceed it by N sixteenths. A separate thread writes; blocks are not cached when it cannot keep
up. A disk error never makes reading fail: it is logged once, and reading continues without the cache. Nothing is synced, because
the checksum reveals damage from a power cut.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

FOLDER = "http-blocks"
CHECKSUM_BYTES = 16
DEFAULT_LIMIT = 1 << 30
MAX_WAITING = 64 << 20
"""Most bytes in the write queue; further blocks are not cached."""

KEPT_SHARE = 0.9
"""Fraction of the limit that remains after files were deleted."""

STALE_SECONDS = 3600.0
"""A temporary file older than this was left by a process that died."""

_TEMPORARY = "."

logger: logging.Logger = logging.getLogger("psyche.data")

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Block:
    """One sequence of a remote file. file: the remote file's digest, 32 hexadecimal digits; number: from 0."""

    file: str
    number: int


class BlockCache:
    """Blocks in a folder. Blocking except for `keep`; thread-safe.

    folder: the cache makes its own folder in it. limit: bytes on disk, 0 caches nothing.
    """

    def __init__(self, folder: Path, *, limit: int = DEFAULT_LIMIT) -> None:
        self._folder = folder / FOLDER
        self._limit = limit
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="data-cache")
        self._lock = threading.Lock()
        self._waiting = 0
        self._unchecked = limit  # so the first write checks the folder
        self._said = False
        self._closed = False

    def find(self, blocks: Iterable[Block], *, size: int) -> dict[Block, bytes]:
        """Return the blocks that are cached and undamaged. size: bytes of a block."""
        found = {}
        for block in blocks:
            content = self._read(block, size)
            if content is not None:
                found[block] = content

        return found

    def keep(self, blocks: Sequence[tuple[Block, Buffer]]) -> None:
        """Queue blocks to be written; returns at once."""
        size = sum(len(content) for _, content in blocks)
        with self._lock:
            if self._closed or self._limit <= 0 or self._waiting + size > MAX_WAITING:
                return
            self._waiting += size
            self._writer.submit(self._write_all, blocks, size)

    def close(self) -> None:
        """Write what is queued, then stop; idempotent."""
        with self._lock:
            self._closed = True
        self._writer.shutdown(wait=True)

    def _path(self, block: Block) -> Path:
        return self._folder / block.file / str(block.number)

    def _read(self, block: Block, size: int) -> bytes | None:
        path = self._path(block)
        try:
            with path.open("rb") as stream:
                stored = stream.read(CHECKSUM_BYTES + size + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._say("read", error)
            return None

        content = stored[CHECKSUM_BYTES:]
        if len(content) != size or stored[:CHECKSUM_BYTES] != _checksum(block, content):
            path.unlink(missing_ok=True)
            logger.warning("the cached block %s is damaged; it is fetched again", path)
            return None

        with contextlib.suppress(OSError):  # another process has just deleted it
            os.utime(path)
        return content

    def _write_all(self, blocks: Sequence[tuple[Block, Buffer]], size: int) -> None:
        try:
            for block, content in blocks:
                self._unchecked += self._write(block, content)
                if self._unchecked >= self._limit / 16:
                    self._trim()
                    self._unchecked = 0
        except OSError as error:
            self._say("write to", error)
        finally:
            with self._lock:
                self._waiting -= size

    def _write(self, block: Block, content: Buffer) -> int:
        path = self._path(block)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(_checksum(block, content))
                stream.write(content)
                stream.flush()
                taken = _taken(os.fstat(stream.fileno()))
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

        return taken

    def _trim(self) -> None:
        """Delete the least recently used files until the rest is well below the limit."""
        found: list[tuple[int, int, str]] = []  # when used, bytes, path
        for folder in [entry for entry in os.scandir(self._folder) if entry.is_dir()]:
            for entry in os.scandir(folder):
                try:
                    status = entry.stat()
                    if not entry.name.startswith(_TEMPORARY):
                        found.append((status.st_mtime_ns, _taken(status), entry.path))
                    elif status.st_mtime < time.time() - STALE_SECONDS:
                        Path(entry.path).unlink(missing_ok=True)
                except FileNotFoundError:  # another process was quicker
                    continue

        total = sum(size for _, size, _ in found)
        if total <= self._limit:
            return

        for _, size, path in sorted(found):
            if total <= self._limit * KEPT_SHARE:
                break
            Path(path).unlink(missing_ok=True)
            total -= size

    def _say(self, what: str, error: OSError) -> None:
        if not self._said:
            self._said = True
            logger.warning("cannot %s the data cache %s (%s); continuing without it", what, self._folder, error.strerror or error)


def _checksum(block: Block, content: Buffer) -> bytes:
    digest = blake2b(f"{block.file} {block.number} ".encode(), digest_size=CHECKSUM_BYTES)
    digest.update(content)
    return digest.digest()


def _taken(status: os.stat_result) -> int:
    """Return the bytes that a file takes on disk, if the system reports it; else its length."""
    return max(status.st_size, getattr(status, "st_blocks", 0) * 512)
