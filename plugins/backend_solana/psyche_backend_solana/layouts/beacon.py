"""The beacon of a run's account: what the seed of the next round or epoch is made of. Pure; the program computes the same.

A seed draws who witnesses, who trains what, and which shares are recomputed. So nobody may choose it, least of all who ends the
round before. It is made of the hash of the first slot of the chain after the one in which the present round began: that is
known to all before the round ends, and was known to nobody when it began. Any instruction about the run takes it in.

Where no later slot has a hash yet (a round that lasted less than two slots, 0.8 s) the clock and the slot stand in for it. The
chain remembers 512 slots, some 200 s. Where it has forgotten which slot was the first, another one that is still to come
counts: who could take any of those that are remembered would choose among them. So somebody must look in time (`LATE_SECONDS`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

NOT_KNOWN = bytes(32)
"""The hash until it is known."""

BEACON_BYTES = 48

LATE_SECONDS = 60
"""Age of a phase (unix seconds) from which a tick is worth its fee if the hash is not known yet."""

_SEED = b"psyche/beacon-seed/1"
_LAYOUT = struct.Struct("<Q32s8x")


@dataclass(frozen=True, slots=True)
class Beacon:
    """since: slot in which the last seed was drawn, 0 before the first. hash: of the first slot after it, 32 bytes."""

    since: int = 0
    hash: bytes = NOT_KNOWN

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Parse its 48 bytes."""
        return cls(*_LAYOUT.unpack(data))

    def pack(self) -> bytes:
        """Its 48 bytes in the account."""
        return _LAYOUT.pack(self.since, self.hash)

    @property
    def known(self) -> bool:
        """Whether the next seed is decided."""
        return self.hash != NOT_KNOWN

    @property
    def pending(self) -> bool:
        """Whether a hash is still to be taken in."""
        return self.since > 0 and not self.known

    def looked(self, slot: int, hashes: Sequence[tuple[int, bytes]]) -> Beacon:
        """The beacon after an instruction in this slot. hashes: slots that the chain remembers, with theirs, newest first."""
        if not self.pending or slot < self.since + 2 or not hashes or hashes[0][0] <= self.since:
            return self
        if hashes[-1][0] > self.since:
            return Beacon(slot)

        later = [found for at, found in hashes if at > self.since]
        return Beacon(self.since, later[-1])

    def seed(self, now: int, slot: int) -> int:
        """The seed (u64) of what starts at this time (unix seconds) in this slot."""
        stands_in = struct.pack("<qQ", now, slot)
        digest = hashlib.sha256(_SEED + self.hash if self.known else stands_in).digest()
        return int.from_bytes(digest[:8], "little")
