"""The backend for CPUs: kernels compiled by numba (extra `fast`). It takes less time than the torch backend.

All bits that replicas must agree on are equal to the torch backend's. Without numba, or if parameters are not on a CPU, the
torch backend is used.
"""

from __future__ import annotations

import sys


def numba_available() -> bool:
    """Return whether numba is installed, works with the installed numpy and may compile, and the machine is little endian."""
    try:
        import numba
    except (ImportError, SystemError):  # SystemError: numba does not support the installed numpy
        return False

    return sys.byteorder == "little" and not getattr(numba.config, "DISABLE_JIT", False)
