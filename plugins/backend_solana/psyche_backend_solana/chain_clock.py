"""The chain's clock as we may believe it is now. Pure: the local time is handed in and only ever used for differences.

Decided: what counts is the Clock sysvar, which is what the program reads; it is read together with the state, and between two
readings our own seconds are added. Refuses to look at the wall clock: it may be minutes off, and so may the chain's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from solders.pubkey import Pubkey

CLOCK_SYSVAR = Pubkey.from_string("SysvarC1ock11111111111111111111111111111111")
UNIX_TIME_OFFSET = 32
"""Place of the unix time (i64) in the sysvar."""


def unix_time(sysvar: bytes) -> int:
    """Unix seconds of the sysvar's data. Raises struct.error when it is too short."""
    (seconds,) = struct.unpack_from("<q", sysvar, UNIX_TIME_OFFSET)
    return int(seconds)


@dataclass(frozen=True, slots=True)
class ChainClock:
    """A reading. unix: seconds on the chain; at: local monotonic seconds when it was read."""

    unix: int
    at: float

    def now(self, local: float) -> int:
        """Unix seconds on the chain at a local monotonic time, if its clock has gone on as ours."""
        return self.unix + max(0, int(local - self.at))
