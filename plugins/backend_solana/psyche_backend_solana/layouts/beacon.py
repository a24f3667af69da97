"""The beacon of a run's account, from which the next seed is made. No I/O; the on-chain program computes the same.

A seed draws the witnesses, the data of each member, and the shares that are recomputed. So nobody may be able to choose it, in
particular not the member that ends the round before. The seed is made of a slot hash: that of the chain's first slot after the
slot in which the present round began. Everybody knows this hash before the round ends; nobody knew it when the round began. Every
instruction about the run stores it if it is not stored yet.

If no later slot has a hash yet (in a round shorter than two slots, 0.8 s), the clock and the slot are used instead. The chain
remembers 512 slots, about 200 s. If it no longer remembers which slot was the first, the first slot after the present one is
used, because with remembered hashes the sender of the instruction could choose between them. So an instruction must be sent in
time (`LATE_SECONDS`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

NOT_KNOWN = bytes(32)
"""Placeholder for a hash that is not known yet."""

BEACON_BYTES = 48

LATE_SECONDS = 60
"""Age of a phase (unix seconds) from which a tick is worth its fee if the hash is not known yet."""

_SEED = b"psyche/beacon-seed/1"
_LAYOUT = struct.Struct("<Q32s8x")


@dataclass(frozen=True, slots=True)
class Beacon:
    """The beacon of a run.

    since: slot in which the last seed was drawn; 0 before the first. hash: of the first slot after it, 32 bytes.
    """

    since: int = 0
    hash: bytes = NOT_KNOWN

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Parse the 48 bytes in the account."""
        return cls(*_LAYOUT.unpack(data))

    def pack(self) -> bytes:
        """Return the 48 bytes in the account."""
        return _LAYOUT.pack(self.since, self.hash)

    @property
    def known(self) -> bool:
        """Whether the hash for the next seed is known."""
        return self.hash != NOT_KNOWN

    @property
    def pending(self) -> bool:
        """Whether the hash for the next seed must still be stored."""
        return self.since > 0 and not self.known

    def looked(self, slot: int, hashes: Sequence[tuple[int, bytes]]) -> Beacon:
        """Return the beacon after an instruction in this slot. hashes: remembered slots and their hashes, newest first."""
        if not self.pending or slot < self.since + 2 or not hashes or hashes[0][0] <= self.since:
            return self
        if hashes[-1][0] > self.since:
            return Beacon(slot)

        later = [found for at, found in hashes if at > self.since]
        return Beacon(self.since, later[-1])

    def seed(self, now: int, slot: int) -> int:
        """Return the seed (u64) of a round or epoch that starts now. now: unix seconds. slot: the present one."""
        stands_in = struct.pack("<qQ", now, slot)
        digest = hashlib.sha256(_SEED + self.hash if self.known else stands_in).digest()
        return int.from_bytes(digest[:8], "little")
