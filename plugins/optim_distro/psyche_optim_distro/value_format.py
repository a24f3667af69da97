"""Formats of a coefficient's value in a payload. Imports no torch, since `settings` needs it on servers without torch."""

from __future__ import annotations

from enum import IntEnum


class ValueFormat(IntEnum):
    """How a payload stores the value of a coefficient. The payload's header contains this number."""

    SIGNS = 0
    FLOAT32 = 1
    BFLOAT16 = 2
