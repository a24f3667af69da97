"""Adapts the shipped programs to the user's own addresses: only the other programs' addresses that they contain are changed.

A program contains each other program's address as 32 bytes in its read-only data, but not its own. So only these bytes
are replaced; nothing is compiled. The caller decides which addresses to use.
"""

from __future__ import annotations

from collections.abc import Mapping

from solders.pubkey import Pubkey

from psyche_backend_solana.programs import PROGRAMS, load


def with_ids(name: str, ids: Mapping[str, Pubkey]) -> bytes:
    """Return the ELF file of a program that expects the others at `ids` (by their names). Raises UserError like `load`."""
    content = load(name)
    for other, address in ids.items():
        content = content.replace(bytes(PROGRAMS[other]), bytes(address))
    return content
