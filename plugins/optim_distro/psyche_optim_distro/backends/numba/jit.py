"""How a function becomes machine code: without Python's lock, kept on disk, for the processor it runs on.

Decided: only `free` lets a product and a sum be one operation; it is for integers in float32, where both ways give equal bits,
and for what is private to a member. Everything else rounds as it is written, since all replicas must agree. Refuses to check
bounds: what is compiled is given arrays that fit, which is tested with `NUMBA_BOUNDSCHECK=1`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Machine code that rounds each operation by itself."""
    return _compiled(function, fastmath=False)


def jit_fma(function: F) -> F:
    """The same where a product may be added without being rounded before."""
    return _compiled(function, fastmath={"contract"})


def _compiled(function: F, *, fastmath: bool | set[str]) -> F:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        return cast("F", numba.njit(cache=True, **options)(function))
    except RuntimeError:  # nowhere to keep it: neither beside this file nor in the user's cache
        return cast("F", numba.njit(**options)(function))
