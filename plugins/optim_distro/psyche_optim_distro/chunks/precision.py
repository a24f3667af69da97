"""The precision of the DCT in `compress` by torch. It does not affect `apply`, whose bits all replicas must agree on.

bfloat16 is used if the CPU multiplies it in hardware, which is twice as fast as float32, and if the payload carries no more than
a sign or a bfloat16. No replica depends on which coefficients another one sends, and rounding errors stay in delta. Small chunks
use float32: they take little time, and in norm weights a small coefficient next to a large one may matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from psyche_optim_distro.value_format import ValueFormat

MIN_ELEMENTS = 1024
"""Smallest chunk, in elements, that is transformed in bfloat16."""

_FEATURES = ("avx512_bf16", "amx_bf16")


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision of the transform. large: dtype for chunks of at least MIN_ELEMENTS elements. Smaller chunks use float32."""

    large: torch.dtype = torch.float32

    def of(self, size: int) -> torch.dtype:
        """Return the dtype for chunks of `size` elements."""
        return self.large if size >= MIN_ELEMENTS else torch.float32


def precision_for(values: ValueFormat, device: torch.device) -> Precision:
    """Return the precision for a value format and a device."""
    fits = values in (ValueFormat.SIGNS, ValueFormat.BFLOAT16) and device.type == "cpu" and cpu_has_bfloat16()
    return Precision(torch.bfloat16 if fits else torch.float32)


def cpu_has_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 in hardware and torch uses it. False if torch does not report it."""
    ask = getattr(torch.cpu, "get_capabilities", None)
    known = {} if ask is None else ask()
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch has no type for it
    return available and any(known.get(feature) is True for feature in _FEATURES)
