"""The Merkle root in a witness's statement: one hash over the commitments that it accepted."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

EMPTY_ROOT = bytes(32)


def merkle_root(items: Sequence[bytes]) -> bytes:
    """Return the Merkle root (32 bytes) over the items in this order; 32 zero bytes if there are none.

    A leaf is SHA-256(0x00, item), a node is SHA-256(0x01, left, right). If a level has an odd number of nodes, its last node is
    paired with itself, as in the reference implementation. Sort the items before, because equal sets must give equal roots (F6).
    """
    if not items:
        return EMPTY_ROOT

    level = [hashlib.sha256(b"\x00" + item).digest() for item in items]
    while len(level) > 1:
        if len(level) % 2:
            level.append(level[-1])
        level = [hashlib.sha256(b"\x01" + left + right).digest() for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]
