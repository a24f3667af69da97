"""An estimate of the chain's clock. No I/O: the caller passes the local time, of which only differences are used.

The program reads the Clock sysvar, so the estimate begins there. The sysvar is read together with the state; between two readings
the local monotonic seconds are added. The wall clock is not used: it may be wrong by minutes, and so may the chain's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from solders.pubkey import Pubkey

CLOCK_SYSVAR = Pubkey.from_string("SysvarC1ock11111111111111111111111111111111")
UNIX_TIME_OFFSET = 32
"""Offset of the unix time (i64) in the sysvar."""


def unix_time(sysvar: bytes) -> int:
    """Unix seconds from the sysvar's data. Raises struct.error if it is too short."""
    (seconds,) = struct.unpack_from("<q", sysvar, UNIX_TIME_OFFSET)
    return int(seconds)


@dataclass(frozen=True, slots=True)
class ChainClock:
    """A reading of the chain's clock. unix: seconds on the chain. at: local monotonic seconds when it was read."""

    unix: int
    at: float

    def now(self, local: float) -> int:
        """Estimated unix seconds on the chain at a local monotonic time, if both clocks run at the same speed."""
        return self.unix + max(0, int(local - self.at))
