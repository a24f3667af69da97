"""The shipped programs at addresses of one's own: the same bytes, but for the addresses by which they know each other.

Decided: a program holds another one's address as 32 bytes in its read-only data, and its own nowhere, so that exchanging those is
all there is to do; nothing is compiled. Refuses nothing: which addresses there are is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Mapping

from solders.pubkey import Pubkey

from psyche_backend_solana.programs import PROGRAMS, load


def with_ids(name: str, ids: Mapping[str, Pubkey]) -> bytes:
    """The ELF file of a program that finds the others at `ids` (by their names). Raises UserError as `load` does."""
    content = load(name)
    for other, address in ids.items():
        content = content.replace(bytes(PROGRAMS[other]), bytes(address))
    return content
