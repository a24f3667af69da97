"""Settings in the table `[model.LLM.optimizer.SparseLoCo]` of a run configuration. No torch import: servers check them, too."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from psyche_core.interfaces.rate_groups import RateGroups


class SparseLoCoSettings(BaseModel):
    """Settings of SparseLoCo. Unknown keys, infinities and NaN are rejected. All members need the same."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    inner_steps: int = Field(default=8, ge=1, le=1024)
    """AdamW steps on local weights for each result. A share is cut into so many parts; one of fewer samples takes one step for
    each sample."""

    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(gt=0, lt=1)]] = (0.9, 0.95)
    """Decays of AdamW's moments per inner step. A member keeps its moments from share to share."""

    eps: float = Field(default=1e-8, ge=1e-30)
    """Added to the root of AdamW's second moment. In float32, where less than 1e-30 is nearly nothing, a gradient of zeros would
    be divided by zero."""

    clip_grad_norm: float | None = Field(default=None, ge=0)
    """Largest global L2 norm of an inner step's gradient; larger ones are scaled down to it. None or 0: no clipping."""

    weight_decay: float | None = Field(default=None, ge=0)
    """Masters are multiplied by 1 - learning rate * inner_steps * weight_decay once per applied step. None: 0."""

    outer_rate: float = Field(default=1.0, gt=0, le=100)
    """Factor of the mean of what members sent for a weight, when it is applied."""

    error_decay: float = Field(default=0.95, ge=0, lt=1)
    """Factor per step of what was not sent yet. It takes the place of an outer momentum."""

    topk: int = Field(default=32, ge=1, le=65535)
    """Values sent per chunk. A chunk with fewer elements may send all of them."""

    chunk_size: int = Field(default=4096, ge=1, le=65536)
    """Elements per chunk. Each parameter is cut into chunks of its own, the last of which may be shorter."""

    rates: RateGroups | None = None
    """Factors of learning rate and weight decay by kind of tensor and by name. None: 1 for all."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        first, second = self.betas
        if first * first >= second:
            message = f"betas[0]² must be below betas[1], or AdamW's step has no bound; got {first} and {second}"
            raise ValueError(message)
        if self.topk > self.chunk_size:
            most = self.chunk_size
            message = f"topk = {self.topk} is more than the {most} elements of a chunk; take {most} or fewer"
            raise ValueError(message)
        return self

    @property
    def step_bound(self) -> float:
        """Largest magnitude of one AdamW step over all gradient histories, in units of the learning rate.

        (1 - b1) / sqrt((1 - b2) (1 - b1² / b2)), by Cauchy-Schwarz on the two moments' sums.
        """
        first, second = self.betas
        return max(1.0, (1 - first) / math.sqrt((1 - second) * (1 - first * first / second)))

    @property
    def limit(self) -> float:
        """Largest magnitude of a sent value: where `inner_steps` AdamW steps can lead, in units of the learning rate."""
        return self.inner_steps * self.step_bound
