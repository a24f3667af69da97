"""In which precision the transform of `compress` is done.

Decided: bfloat16 where the CPU multiplies it in hardware, twice as fast as float32, and nobody wants more of a coefficient than
it has: what travels is a sign or a bfloat16. Which coefficients are sent is private, so no replica depends on it, and what a
rounded coefficient leaves behind stays in delta. Small chunks are done in float32: they cost nothing, and in norm weights a
small coefficient beside a large one may matter. Refuses to touch `apply`, whose bits all replicas must agree on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from psyche_optim_distro.value_format import ValueFormat

SMALLEST = 1024
"""Elements of a chunk that is worth it."""

_FEATURES = ("avx512_bf16", "amx_bf16")


@dataclass(frozen=True, slots=True)
class Precision:
    """large: of chunks of at least SMALLEST elements; the others are float32."""

    large: torch.dtype = torch.float32

    def of(self, size: int) -> torch.dtype:
        """Of chunks of so many elements."""
        return self.large if size >= SMALLEST else torch.float32


def precision_for(values: ValueFormat, device: torch.device) -> Precision:
    """The precision for what travels of a coefficient, on a device."""
    fits = values in (ValueFormat.SIGNS, ValueFormat.BFLOAT16) and device.type == "cpu" and cpu_has_bfloat16()
    return Precision(torch.bfloat16 if fits else torch.float32)


def cpu_has_bfloat16() -> bool:
    """Whether this CPU has instructions for it and torch uses them. False where torch cannot tell."""
    ask = getattr(torch.cpu, "get_capabilities", None)
    known = {} if ask is None else ask()
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch has no type for it
    return available and any(known.get(feature) is True for feature in _FEATURES)
