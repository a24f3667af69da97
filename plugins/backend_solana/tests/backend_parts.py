"""Keys of members, and what tests of the backend wait for."""

from __future__ import annotations

from typing import Any

from psyche_core.wire.signing import SecretKey

KEYS = [SecretKey(bytes([number]) * 32) for number in (1, 2, 3)]


def pending(count: int) -> Any:
    return lambda update: len(update.state.pending) == count


def at(signer: bytes, address: bytes) -> Any:
    return lambda update: update.addresses.get(signer) == address
