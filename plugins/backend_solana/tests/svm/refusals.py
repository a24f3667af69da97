"""Refusals of the coordinator program by name and by number, for what tests expect."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from psyche_backend_solana.layouts.errors import COMMON, COORDINATOR

COORDINATOR_CODES: Mapping[str, int] = MappingProxyType({name: code for code, name in {**COMMON, **COORDINATOR}.items()})
"""The numbers of what the coordinator program refuses with, by name."""


def coordinator_refusal(code: int) -> str:
    """The name of `Custom(code)` from the coordinator program; `Custom(code)` itself when there is none."""
    return COMMON.get(code) or COORDINATOR.get(code) or f"Custom({code})"
