"""The recent blockhashes that a transaction may name.

LiteSVM knows one blockhash, and its check is off. This window replaces it and is as long as a real chain's. The hash of a slot
is derived from the previous one and from fresh random bytes, since nobody may know it before; the first from the chain's genesis.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from psyche_backend_solana.localnet import base58
from psyche_backend_solana.localnet.settings import BLOCKHASH_SLOTS


def next_hash(previous: str, slot: int, *, fresh: bytes = b"") -> str:
    """The blockhash (base58) of a slot. fresh: random bytes that make it unpredictable."""
    return base58.encode(hashlib.sha256(base58.decode(previous) + slot.to_bytes(8, "little") + fresh).digest())


class BlockhashWindow:
    """The blockhashes of the last 150 slots. Slots that were skipped have none."""

    def __init__(self, slot: int, blockhash: str) -> None:
        self._slots: dict[str, int] = {blockhash: slot}
        self._latest = blockhash
        self._now = slot

    @property
    def latest(self) -> str:
        """The newest one."""
        return self._latest

    def add(self, slot: int, blockhash: str) -> None:
        """Start a new slot."""
        self._slots[blockhash] = slot
        self._latest, self._now = blockhash, slot
        for old in [known for known, at in self._slots.items() if slot - at > BLOCKHASH_SLOTS]:
            del self._slots[old]

    def forget(self) -> None:
        """Invalidate all but the newest one."""
        self._slots = {self._latest: self._slots[self._latest]}

    def is_valid(self, blockhash: str, *, within: int = BLOCKHASH_SLOTS) -> bool:
        """Whether a transaction with it may be processed now. within: maximum age in slots, at most 150."""
        slot = self._slots.get(blockhash)
        return slot is not None and self._now - slot <= within

    def items(self) -> list[tuple[int, str]]:
        """Slots and their hashes, newest first."""
        return [(slot, blockhash) for blockhash, slot in reversed(self._slots.items())]

    @classmethod
    def restored(cls, items: Iterable[tuple[int, str]]) -> BlockhashWindow:
        """Restore a window from `items`, which must not be empty."""
        (slot, blockhash), *others = sorted(items)
        window = cls(slot, blockhash)
        for later, following in others:
            window.add(later, following)
        return window
