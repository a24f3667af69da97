"""Chooses the next token: always the most likely one, or a random one with its own seed.

The random numbers come from this module's own generator and are drawn on the CPU. So a seed gives the same text on each device,
except for rounding, and other code in the process that draws random numbers is not affected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers

_SMALLEST = 1e-7
"""Below this temperature the likeliest token is taken."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Rules for choosing tokens.

    temperature: 0 takes the likeliest token; 1 draws with the model's own probabilities; less makes likely tokens likelier.
    top_k: only this many of the likeliest tokens are drawn from; 0 for all. top_p: only the likeliest tokens that together have
    this probability; 1 for all. seed: of the random numbers. Raises ValueError for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 42

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and self.top_k >= 0 and 0 < self.top_p <= 1):
            message = f"needed: temperature >= 0, top_k >= 0 and 0 < top_p <= 1; got {self}"
            raise ValueError(message)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < _SMALLEST

    def processors(self) -> Any:
        """Return the processors that transformers applies to each token's logits before it takes the most likely token."""
        found = transformers.LogitsProcessorList()
        if self.greedy:
            return found
        found.append(transformers.TemperatureLogitsWarper(self.temperature))
        if self.top_k:
            found.append(transformers.TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            found.append(transformers.TopPLogitsWarper(self.top_p))
        found.append(SeededChoice(self.seed))
        return found


class SeededChoice(transformers.LogitsProcessor):
    """Adds Gumbel noise: the largest sum then belongs to a token drawn with the probabilities of the logits."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:  # noqa: ARG002
        """Return scores of shape (batch, vocabulary) with noise."""
        uniform = torch.rand(scores.shape, generator=self._generator, dtype=torch.float64).clamp_(min=1e-300)
        noise = -torch.log(-torch.log(uniform))
        return scores.float() + noise.to(device=scores.device, dtype=torch.float32)
