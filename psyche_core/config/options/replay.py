"""Options of `psyche replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from psyche_core.config.options.common import SECONDS, TOKENS, WEB_HOST, WEB_PER_ADDRESS
from psyche_core.config.options.loading import ProgramSettings


class ReplaySettings(ProgramSettings):
    """All options of `psyche replay`."""

    speed: float = Field(
        default=10.0,
        ge=0,
        json_schema_extra={"unit": "TIMES"},
        description="How many times faster than the run was; 1 for its own speed, 0 for as fast as this machine can.",
    )
    from_step: int | None = Field(default=None, ge=0, description="Begin at this step; everything before is shown at once.")
    max_pause: float = Field(
        default=5.0,
        ge=0,
        json_schema_extra=SECONDS,
        description="Longest wait between two events: a night in which a run was paused is played in this time.",
    )
    logs: Literal["auto", "tui", "console", "none"] = Field(
        default="auto",
        description="auto: live panel on a terminal, otherwise lines; tui: full screen, also --tui; console: lines; "
        "none: nothing",
    )
    web_port: int | None = Field(default=None, ge=0, le=65535, description="Play on a web page at this port, too; 0 picks one.")
    web_host: str = Field(default="127.0.0.1", description=WEB_HOST)
    web_per_address: int = Field(default=20, ge=1, le=200, description=WEB_PER_ADDRESS)
    token_file: Path | None = Field(default=None, description=TOKENS)
