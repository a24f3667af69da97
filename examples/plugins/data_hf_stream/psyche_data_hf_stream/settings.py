"""`[model.LLM.data_location.HfStream]` of a run file."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field


class HfStreamSettings(BaseModel):
    """Unknown keys are refused, and users get a "did you mean". Relative paths start at the run's base."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    location: str = Field(min_length=1, description="A file, or a folder of files in order of name.")
    form: Literal["json", "text"] = Field(
        default="json", description="json: lines of JSON objects, *.jsonl in a folder. text: a text a line, *.txt in a folder."
    )
    field: str = Field(default="text", min_length=1, description="Column of the text; always text for the form text.")
    tokenizer: str = Field(min_length=1, description="A tokenizer.json, as the package tokenizers writes it.")
    separator: str | None = Field(default=None, description="Token of the tokenizer that ends each text; none if not given.")
    index_tokens: int = Field(
        default=2**18,
        ge=1,
        description="A place in the stream is kept each so many tokens: fewer use more memory, and read less.",
    )
