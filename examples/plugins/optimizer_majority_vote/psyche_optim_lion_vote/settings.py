"""`[model.LLM.optimizer.LionVote]` of a run file. No torch here: a server checks run files without it."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Beta = Annotated[float, Field(gt=0.0, lt=1.0)]


class LionVoteSettings(BaseModel):
    """Unknown keys are refused, and users get a "did you mean"."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    betas: tuple[Beta, Beta] = Field(
        default=(0.9, 0.99),
        description="Share of the momentum in a vote, the rest is the gradient's; and decay of the momentum per step.",
    )
    weight_decay: float = Field(default=0.0, ge=0.0, description="Decoupled: multiplied by the learning rate.")
