"""Options of `psyche web`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from psyche_core.config.options.common import SECONDS, TOKENS, WEB_HOST, WEB_PER_ADDRESS
from psyche_core.config.options.loading import ProgramSettings
from psyche_core.config.schema import RunId


class WebSettings(ProgramSettings):
    """All options of `psyche web`."""

    events: Path | None = Field(
        default=None,
        description=(
            "Folder of one run's event files (*.jsonl), or of runs: what `psyche testnet start --out`, --events-dir or "
            "--events-file wrote. Runs and members that come later are shown too, and files are followed as they grow."
        ),
    )
    server_addr: str | None = Field(
        default=None,
        description=(
            "Address of a coordinator to follow, as for `psyche client train`: phases, members and points, but no losses, which "
            "are in members' event files only. Needs --run-id. The page joins nothing and sends nothing."
        ),
    )
    run_id: RunId | None = Field(default=None, description="Name of the run at --server-addr.")
    backend: str = Field(default="tcp", description="Backend of the coordinator to follow, by plugin name.")
    reconnect_seconds: float = Field(
        default=300.0,
        ge=0,
        json_schema_extra=SECONDS,
        description="How long to try to reach the coordinator before giving up, at the start and after each lost connection.",
    )
    web_port: int = Field(default=8420, ge=0, le=65535, description="Port of the page; 0 picks a free one.")
    web_host: str = Field(default="127.0.0.1", description=WEB_HOST)
    web_per_address: int = Field(default=20, ge=1, le=200, description=WEB_PER_ADDRESS)
    token_file: Path | None = Field(default=None, description=TOKENS)
