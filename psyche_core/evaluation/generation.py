"""Continues a prompt with text, and passes the text on piece by piece if wanted.

transformers generates, with its key-value cache; `sampling` chooses the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import torch
import transformers

from psyche_core.errors import InputError, ModelError
from psyche_core.evaluation.sampling import Sampling
from psyche_core.evaluation.text_model import TextModel
from psyche_core.models.hf.quiet import first_line, quiet

TextSink = Callable[[str], None]
"""Function that receives each new piece of a text."""


@dataclass(frozen=True, slots=True)
class Written:
    """The text that a model generated.

    text: the continuation, without the prompt. prompt_tokens, tokens: of prompt and continuation. end: `end` if the model ended
    the text itself, `length` if it reached the limit. seconds: wall time.
    """

    prompt: str
    text: str
    prompt_tokens: int
    tokens: int
    end: Literal["end", "length"]
    seconds: float


def write(
    model: TextModel,
    prompt: str,
    *,
    sampling: Sampling | None = None,
    max_new_tokens: int = 128,
    chat: bool = False,
    on_text: TextSink | None = None,
) -> Written:
    """Continue a prompt.

    sampling: None for the likeliest tokens. max_new_tokens: fewer if the model's longest text is reached. chat: the prompt is a
    user's message, put into the tokenizer's chat template. on_text: gets the text piece by piece, at ends of words. Raises
    InputError for a prompt that is too long or empty, and ModelError.
    """
    ids = encode(model, prompt, chat=chat)
    count = int(ids.shape[1])
    most_new = max_new_tokens if model.max_tokens is None else min(max_new_tokens, model.max_tokens - count)
    if most_new < 1:
        message = f"the prompt has {count} tokens and the model reads at most {model.max_tokens}; shorten it"
        raise InputError(message)

    started = perf_counter()
    try:
        with torch.no_grad(), quiet():
            out = model.module.generate(
                ids.to(model.device),
                attention_mask=torch.ones_like(ids, device=model.device),
                generation_config=plain_generation(model, most_new),
                logits_processor=(sampling or Sampling()).processors(),
                streamer=None if on_text is None else _Streamer(model.tokenizer, on_text),
            )
    except InputError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:  # torch's out of memory is a RuntimeError
        message = f"the model could not write: {first_line(error)}"
        raise ModelError(message) from error

    new = out[0, count:].tolist()
    ended = bool(new) and new[-1] in ends_of(model)
    text = model.tokenizer.decode(new, skip_special_tokens=True)
    return Written(prompt, text, count, len(new), "end" if ended else "length", perf_counter() - started)


def encode(model: TextModel, prompt: str, *, chat: bool = False) -> torch.Tensor:
    """Return the ids of a prompt, shape (1, tokens). Raises InputError."""
    words = model.tokenizer
    if chat:
        if not words.chat_template:
            message = "the model's tokenizer has no chat template, so it was not trained for conversations; leave out --chat"
            raise InputError(message)
        prompt = words.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False)
    ids: list[int] = words(prompt, add_special_tokens=not chat)["input_ids"]
    if not ids:
        first = next((each for each in (words.bos_token_id, words.eos_token_id) if each is not None), None)
        if first is None:
            message = "the prompt has no token; write at least one word"
            raise InputError(message)
        ids = [int(first)]
    return torch.tensor([ids])


def plain_generation(model: TextModel, most_new: int) -> transformers.GenerationConfig:
    """Return generation settings for transformers that use only the end tokens of the model's own settings."""
    ends = ends_of(model)
    padding = model.tokenizer.pad_token_id
    if padding is None:
        padding = ends[0] if ends else 0
    config: Any = transformers.GenerationConfig
    return config(  # type: ignore[no-any-return]  # transformers is untyped
        max_new_tokens=most_new, do_sample=False, eos_token_id=ends or None, pad_token_id=padding, use_cache=True
    )


def ends_of(model: TextModel) -> list[int]:
    """Return the tokens that end a text, as model and tokenizer define them."""
    named: list[Any] = [model.tokenizer.eos_token_id]
    for config in (model.module.generation_config, model.module.config.get_text_config()):
        of_config = getattr(config, "eos_token_id", None)
        named += of_config if isinstance(of_config, list) else [of_config]
    return sorted({int(each) for each in named if each is not None})


class _Streamer(transformers.TextStreamer):
    def __init__(self, tokenizer: Any, on_text: TextSink) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._on_text = on_text

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Pass finished words on. stream_end: whether these are the last ones."""
        del stream_end
        if text:
            self._on_text(text)
