"""Keeps freed memory for later allocations while much data is moved, and returns it to the system at the end of a phase.

By default the C library returns a large freed block to the system at once and gets a new one, page by page, for the next
allocation. When a model is processed in hundreds of pieces, this takes a tenth of the time. But memory that is never returned is
a quarter of a gigabyte that other programs could use. So the program keeps freed memory, and returns it at the end of a phase
that used much memory. These functions do nothing without glibc. A program that embeds a client decides itself whether to call
them.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt(3)
_KEPT_BYTES = 128 * 2**20
_BLOCK_BYTES = 32 * 2**20
_HEAPS = 2
"""The C library makes up to eight heaps per core, and threads of one heap cannot use memory that another heap keeps."""


def keep_freed_memory() -> bool:
    """Let the C library keep up to 128 MiB of freed blocks of up to 32 MiB each, in two heaps, for the whole process.

    Returns whether the C library accepted the settings.
    """
    if sys.platform != "linux":
        return False

    change = getattr(ctypes.CDLL(None), "mallopt", None)
    wanted = ((_MMAP_THRESHOLD, _BLOCK_BYTES), (_TRIM_THRESHOLD, _KEPT_BYTES), (_ARENA_MAX, _HEAPS))
    return change is not None and all(change(what, value) for what, value in wanted)


def give_back_memory() -> None:
    """Return freed memory that the C library still keeps to the system. Blocks for some milliseconds."""
    if sys.platform != "linux":
        return

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
