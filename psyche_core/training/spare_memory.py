"""Memory that was freed, given back to the system.

The C library keeps what large short-lived blocks leave behind for the next ones, in each thread's own store; after many pieces of
a model that is a quarter of a gigabyte that somebody else could use. Decided here: only where a phase ends that used much, since
asking costs milliseconds. Refuses to do anything where the C library does not offer it (anywhere but glibc).
"""

from __future__ import annotations

import ctypes
import sys


def give_back_memory() -> None:
    """Return what this process has freed and not given back. Blocks for some milliseconds."""
    if sys.platform != "linux":
        return

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
