"""The settings table of the optimizer `Dummy`, without torch: it has no keys."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class DummySettings(BaseModel):
    """`optimizer = "Dummy"`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)
