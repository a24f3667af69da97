"""DisTrO payloads of 16-bit values: finite, bounded, not zero."""

from __future__ import annotations

from psyche_core.errors import PayloadRejected
from psyche_optim_distro.value_format import ValueFormat
from tests.fuzz.distro import MEMORY, Payloads

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (PayloadRejected,)
_PAYLOADS = Payloads(ValueFormat.BFLOAT16)
MAX_BYTES = _PAYLOADS.max_bytes + 64
seeds, mutate, TARGET = _PAYLOADS.seeds, _PAYLOADS.changed, _PAYLOADS.check
