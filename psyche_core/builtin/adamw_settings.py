"""The settings table of `AdamW`, in its own module so that a server can check a configuration without importing torch."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from psyche_core.interfaces.rate_groups import RateGroups


class AdamWSettings(BaseModel):
    """`[model.LLM.optimizer.AdamW]`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(gt=0.0, lt=1.0)]] = (0.9, 0.95)
    """Decay of the first and second moment per step."""

    weight_decay: Annotated[float, Field(ge=0.0)] = 0.1
    """Decoupled: multiplied by the learning rate."""

    eps: Annotated[float, Field(gt=0.0)] = 1e-8
    """Added to √v̂."""

    clip_grad_norm: Annotated[float, Field(ge=0.0)] | None = None
    """Global L2 norm to which the replica's own gradient is clipped; absent or 0 means no clipping."""

    rates: RateGroups | None = None
    """Factors of learning rate and weight decay by kind of tensor and by name; absent means 1 for all."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        first, second = self.betas
        if first * first >= second:
            message = f"betas[0]² must be below betas[1], or AdamW's step has no bound; got {first} and {second}"
            raise ValueError(message)
        return self

    @property
    def bound(self) -> float:
        """Largest |m̂ / √v̂| over all gradient histories: (1-β₁) / √((1-β₂)(1-β₁²/β₂)), by Cauchy-Schwarz on the two sums."""
        first, second = self.betas
        return max(1.0, (1 - first) / math.sqrt((1 - second) * (1 - first * first / second)))
