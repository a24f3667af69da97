"""Options of the tracker: `--sqlite-file` and `PSYCHE_SQLITE_FILE`, where `--tracker sqlite` is given."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field


class SqliteSettings(BaseModel):
    """Names begin with the tracker's own."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    sqlite_file: Path = Field(default=Path("runs/figures.sqlite3"), description="Database for all runs and members.")
