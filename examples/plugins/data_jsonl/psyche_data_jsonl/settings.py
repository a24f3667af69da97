"""`[model.LLM.data_location.Jsonl]` of a run file, or `data_location.Jsonl = "texts.jsonl"`, which arrives as location."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field


class JsonlSettings(BaseModel):
    """Unknown keys are refused, and users get a "did you mean"."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    location: str = Field(
        min_length=1,
        description="A file, or a folder of *.jsonl files in order of name; a relative path starts at the run's base.",
    )
    field: str = Field(default="text", min_length=1, description="Key of the text in each line's object.")
