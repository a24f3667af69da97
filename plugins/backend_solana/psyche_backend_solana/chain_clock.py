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
