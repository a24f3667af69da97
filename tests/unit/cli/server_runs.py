"""Settings and saved runs for tests of `psyche server run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from psyche_core.config.options.loading import load_settings
from psyche_core.config.options.server import ServerSettings


def settings(**given: Any) -> ServerSettings:
    return load_settings(ServerSettings, {"state": Path("state.toml"), **given})
