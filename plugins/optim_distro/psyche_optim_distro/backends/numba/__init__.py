"""The work of a step in machine code for a CPU, made by numba (extra `fast`): equal bits to the plain modules, in less time.

Where numba is missing, or parameters are not on a CPU, the plain modules do the same work. Nothing here decides anything that a
replica could notice.
"""

from __future__ import annotations

import sys


def numba_available() -> bool:
    """Whether numba is here, works with this numpy and may compile, and words are little endian."""
    try:
        import numba
    except (ImportError, SystemError):  # the latter for a numpy it was not made for
        return False

    return sys.byteorder == "little" and not getattr(numba.config, "DISABLE_JIT", False)
