"""The prompt task of a training client: the model continues a few fixed prompts, again and again while it trains.

Temperature and seed are always the same, so only the model's changes can change the texts. A text that the trainer interrupts is
continued later, with the weights that the model has then.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from psyche_core.evaluation.generation import encode, ends_of, plain_generation
from psyche_core.evaluation.sampling import Sampling
from psyche_core.evaluation.spare_time import Reclaimed, SpareTime
from psyche_core.evaluation.text_model import TextModel, text_model
from psyche_core.models.hf.quiet import quiet

PROMPTS: Final = (
    "To be, or not to be",
    "Once upon a time",
    "The capital of France is",
    "Question: Why is the sky blue?\nAnswer:",
)
SAMPLING: Final = Sampling(temperature=0.6, seed=42)
NEW_TOKENS: Final = 64


def write_in_spare_time(
    spare: SpareTime, tokenizer: Any, prompt: str, *, max_new_tokens: int = NEW_TOKENS
) -> tuple[str, int, int]:
    """Continue a prompt while the trainer does not need the model.

    Returns the text without the prompt, and the steps of the model when it began and when it ended. Raises SpareTimeOver, and
    what transformers raises.
    """
    processors = SAMPLING.processors()
    written: list[int] = []
    first: int | None = None
    while True:
        with spare.borrow() as loan:
            model = text_model(loan.module, tokenizer)
            first = loan.step if first is None else first
            try:
                _go_on(model, prompt, written, processors, max_new_tokens)
            except Reclaimed:
                continue
            return tokenizer.decode(written, skip_special_tokens=True), first, loan.step


def _go_on(model: TextModel, prompt: str, written: list[int], processors: Any, most: int) -> None:
    """Add tokens to `written` until the text is complete."""
    start = encode(model, prompt)
    most_new = most if model.max_tokens is None else min(most, model.max_tokens - start.shape[1])
    if len(written) >= most_new or (written and written[-1] in ends_of(model)):
        return

    ids = torch.cat([start, torch.tensor([written], dtype=start.dtype)], dim=1) if written else start
    with torch.no_grad(), quiet():
        model.module.generate(
            ids.to(model.device),
            attention_mask=torch.ones_like(ids, device=model.device),
            generation_config=plain_generation(model, most_new - len(written)),
            logits_processor=processors,
            streamer=_Collector(written),
        )


class _Collector:
    """Receives each token when it is chosen; the first call has the prompt."""

    def __init__(self, into: list[int]) -> None:
        self._into = into
        self._prompted = False

    def put(self, value: torch.Tensor) -> None:
        """Add a token."""
        if self._prompted:
            self._into.extend(value.flatten().tolist())
        self._prompted = True

    def end(self) -> None:
        """Do nothing at the end of a text."""
