"""DisTrO payloads of signs, against our own parameter table."""

from __future__ import annotations

from random import Random

from psyche_core.errors import PayloadRejected
from psyche_optim_distro.values import Values
from tests.fuzz.distro import Payloads

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (PayloadRejected,)
_PAYLOADS = Payloads(Values.SIGNS)
MAX_BYTES = _PAYLOADS.max_bytes + 64
MEMORY = (150, 65_536)  # a byte of the unary table is 8 bits, each an int64 position


def seeds() -> list[bytes]:
    return _PAYLOADS.seeds


def mutate(data: bytes, random: Random) -> bytes:
    return _PAYLOADS.changed(data, random)


def TARGET(data: bytes) -> None:
    _PAYLOADS.check(data)
