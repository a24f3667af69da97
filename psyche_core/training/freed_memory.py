"""Freed memory: kept for the next block while much data is moved, given back to the system when a phase ends.

By default the C library gives a large freed block back at once and gets the next one anew, page by page. Where a model passes
through in hundreds of pieces, that is a tenth of the work. But memory kept for ever is a quarter of a gigabyte that others could
use. So a program keeps what it frees, and gives it back at the end of a phase that used much. Nothing is done where the C library
does not offer this (anywhere but glibc). A library that embeds a client decides for itself.
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
