"""Settings in the table `[model.LLM.optimizer.Distro]` of a run configuration.

Names and meanings are those of the reference implementation. Values that cannot work are rejected when the configuration is
read. The reference implementation checks none of them.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from psyche_core.interfaces.rate_groups import RateGroups
from psyche_optim_distro.value_format import ValueFormat

MAX_CHUNK = 1024
"""Longest chunk side. Beyond it the exact integer transform has fewer than 7 bits per operand, and the basis takes megabytes."""


class DistroSettings(BaseModel):
    """Settings of DisTrO. Unknown keys, infinities and NaN are rejected."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    clip_grad_norm: float | None = Field(default=None, ge=0)
    """Largest global L2 norm of the gradient; larger gradients are scaled down to it. None or 0: no clipping."""

    weight_decay: float | None = Field(default=None, ge=0)
    """Masters are multiplied by 1 - learning rate * weight_decay once per applied step. None: 0."""

    compression_decay: float = Field(default=0.999, ge=0, lt=1)
    """Factor of delta (momentum) per trained step."""

    compression_subtract: float = Field(default=1.0, gt=0, le=1)
    """Fraction of a sent result that is subtracted from delta. With less than 1 the rest stays and counts as momentum. Not in the
    reference implementation."""

    compression_topk: int = Field(default=32, ge=1, le=65535)
    """Coefficients sent per chunk. A chunk with fewer elements sends all of them; more than the largest can have are refused."""

    compression_chunk: int = Field(default=64, ge=1, le=MAX_CHUNK)
    """Target chunk side in elements. The side used is the dimension's largest divisor that is not above it."""

    quantize_1bit: bool = False
    """Send signs (1 bit) instead of values. Only the proportions of values in a chunk count, so a sender's influence has the same
    bound either way."""

    value_bits: Literal[16, 32] = 16
    """Bits of a sent value: 16 (bfloat16) or 32 (float32).

    Not in the reference implementation, which sends its parameters' dtype.
    """

    gradient_beta2: float | None = Field(default=None, ge=0, lt=1)
    """A member divides its own gradients by their running root mean square, as Adam does, before it adds them to delta; this is
    the mean square's decay per step. It costs no bytes, and a private buffer of delta's size. None: gradients are added as they
    are. Not in the reference implementation."""

    rates: RateGroups | None = None
    """Factors of learning rate and weight decay by kind of tensor and by name. None: 1 for all. Not in the reference
    implementation."""

    second_stage: Literal["clip", "rmsprop", "orthogonal"] | None = None
    """What makes the direction of a step from the decoded mean of all senders. None: its sign. `clip`: the mean divided by twice
    its mean magnitude in the chunk, at most 1. `rmsprop`: divides each element by its running root mean
    square, which members share and checkpoints hold; it needs `quantize_1bit`. `orthogonal`: each chunk of a matrix moves along
    the nearest semi-orthogonal matrix, as in Muon, and other tensors by signs. Not in the reference implementation."""

    lookahead: Literal["delta", "payload"] = "delta"
    """By what a member moves its weights ahead of the results in flight, before it computes a gradient. `delta`: by the signs of
    its delta, which costs least loss. `payload`: by its own newest result, which everybody has, so that a member whose share is
    checked need not show the signs, an eighth of a byte for each parameter. Not in the reference implementation."""

    @model_validator(mode="after")
    def _looks_ahead_without_public_state(self) -> Self:
        if self.lookahead == "payload" and self.second_stage == "rmsprop":
            message = 'lookahead = "payload" does not go with second_stage = "rmsprop"; take lookahead = "delta"'
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _has_votes_for_its_second_stage(self) -> Self:
        if self.second_stage == "rmsprop" and not self.quantize_1bit:
            message = f'second_stage = "{self.second_stage}" needs quantize_1bit = true'
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _fits_a_chunk(self) -> Self:
        most = self.compression_chunk**2  # of a parameter with two dimensions or more; of others it is fewer
        if "compression_topk" in self.model_fields_set and self.compression_topk > most:
            message = (
                f"compression_topk = {self.compression_topk} is more than the {most} values of the largest chunk "
                f"({self.compression_chunk} times {self.compression_chunk}); take {most} or fewer"
            )
            raise ValueError(message)
        return self

    @property
    def values(self) -> ValueFormat:
        """The format of values in payloads."""
        if self.quantize_1bit:
            return ValueFormat.SIGNS

        return ValueFormat.BFLOAT16 if self.value_bits == 16 else ValueFormat.FLOAT32

    def why_unverifiable(self) -> str | None:
        """Return why others cannot recompute training with these settings, as the end of a sentence; None if they can."""
        if not self.clip_grad_norm:
            return "without clip_grad_norm there is no limit to what a member may claim that it has accumulated"
        if self.second_stage == "rmsprop":
            return 'with second_stage = "rmsprop" nobody can go back to the weights of an earlier step'

        return None
