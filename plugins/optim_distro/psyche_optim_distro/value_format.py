"""What travels of a coefficient besides its place. Imports nothing of weight: settings need it, and a server has no torch."""

from __future__ import annotations

from enum import IntEnum


class ValueFormat(IntEnum):
    """What travels of a coefficient besides its place."""

    SIGNS = 0
    FLOAT32 = 1
    BFLOAT16 = 2
