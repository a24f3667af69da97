"""The table `[model.LLM.optimizer.Distro]` of a run configuration: names and meaning are the reference's, the rules are ours.

The reference checks none of these values; here a value that cannot work is refused when the configuration is read.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from psyche_optim_distro.value_format import ValueFormat

MAX_CHUNK = 1024
"""Longest chunk side: beyond it the exact integer decode keeps fewer than 7 bits per operand, and the basis is megabytes."""


class DistroSettings(BaseModel):
    """Settings of DisTrO. Unknown keys, infinities and NaN are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    clip_grad_norm: float | None = Field(default=None, ge=0)
    """Largest global L2 norm of the gradient; larger gradients are scaled down to it. None or 0: no clipping."""

    weight_decay: float | None = Field(default=None, ge=0)
    """Masters are multiplied by 1 - learning rate * weight_decay once per applied step. None: 0."""

    compression_decay: float = Field(default=0.999, ge=0, lt=1)
    """Factor of the delta (momentum) per trained step."""

    compression_topk: int = Field(default=32, ge=1, le=65535)
    """Coefficients sent per chunk; a smaller chunk sends all of its own."""

    compression_chunk: int = Field(default=64, ge=1, le=MAX_CHUNK)
    """Target chunk side in elements; a dimension is cut by its largest divisor that is not above it."""

    quantize_1bit: bool = False
    """Send signs (1 bit) instead of values. Of values only the proportions within a chunk count, so both bound a sender alike."""

    value_bits: Literal[16, 32] = 16
    """Bits of a value where values are sent: bfloat16 or float32. Ours: the reference sends what its parameters are in."""

    @property
    def values(self) -> ValueFormat:
        """What travels of a coefficient."""
        if self.quantize_1bit:
            return ValueFormat.SIGNS

        return ValueFormat.BFLOAT16 if self.value_bits == 16 else ValueFormat.FLOAT32
