"""Memory that was freed: kept for the next block while much is moved, given back to the system when a phase ends.

The C library gives a large freed block back at once and takes the next one anew, page by page; where pieces of a model pass
through by the hundred, that is a tenth of the work. Kept for ever it is a quarter of a gigabyte that somebody else could use.
Decided here: a program keeps what it frees, and gives it back where a phase ends that used much. Refuses to do anything where the
C library does not offer it (anywhere but glibc); a library that embeds a client decides for itself.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt(3)
_KEPT_BYTES = 128 * 2**20
_BLOCK_BYTES = 32 * 2**20
_HEAPS = 2
"""The C library makes up to eight a core, and what one thread's heap keeps no other thread gets."""


def keep_freed_memory() -> bool:
    """Keep blocks of up to 32 MiB, 128 MiB of them, for the next ones, in two heaps; for the whole process.

    Returns whether the system took it.
    """
    if sys.platform != "linux":
        return False

    change = getattr(ctypes.CDLL(None), "mallopt", None)
    wanted = ((_MMAP_THRESHOLD, _BLOCK_BYTES), (_TRIM_THRESHOLD, _KEPT_BYTES), (_ARENA_MAX, _HEAPS))
    return change is not None and all(change(what, value) for what, value in wanted)


def give_back_memory() -> None:
    """Return what this process has freed and not given back. Blocks for some milliseconds."""
    if sys.platform != "linux":
        return

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
