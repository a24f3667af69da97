"""The options of this tracker, beside those of `psyche client train`, and whether they can work here.

The key of the service is not among them, because every user of a machine can read command lines: it is read from the environment
(WANDB_API_KEY) or from where `wandb login` puts it, by the service's own library.
"""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from psyche_core.errors import ConfigError

_CREDENTIALS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
_DEFAULT_SERVER = "https://api.wandb.ai"


def _both(option: str, theirs: str) -> AliasChoices:
    """Our variable, then the library's own."""
    return AliasChoices(f"PSYCHE_{option.upper()}", theirs)


class WandbSettings(BaseSettings):
    """Where the figures go, and under which names."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="PSYCHE_", extra="forbid", frozen=True, env_ignore_empty=True, populate_by_name=True
    )

    wandb_project: str = Field(
        default="psyche",
        min_length=1,
        validation_alias=_both("wandb_project", "WANDB_PROJECT"),
        description="Project at Weights & Biases.",
    )
    wandb_run: str | None = Field(default=None, description="Name of this client's curve. Default: run and key.")
    wandb_group: str | None = Field(
        default=None,
        validation_alias=_both("wandb_group", "WANDB_RUN_GROUP"),
        description="Group that the clients of one run share. Default: the run's name.",
    )
    wandb_entity: str | None = Field(
        default=None,
        validation_alias=_both("wandb_entity", "WANDB_ENTITY"),
        description="User or team that owns the project. Default: the one of the API key.",
    )
    wandb_mode: Literal["online", "offline"] = Field(
        default="online",
        validation_alias=_both("wandb_mode", "WANDB_MODE"),
        description="offline: send nothing and write files, which `wandb sync FOLDER` uploads later.",
    )
    wandb_dir: Path = Field(
        default=Path(),
        validation_alias=_both("wandb_dir", "WANDB_DIR"),
        description="Folder in which the library makes its folder `wandb`. Default: the current folder.",
    )


def check(settings: Any) -> None:
    """Look for the folder and, unless offline, for a key. Sends nothing. Raises ConfigError."""
    folder: Path = settings.wandb_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot write Weights & Biases' files into {folder}: {error.strerror}; give a folder with --wandb-dir"
        raise ConfigError(message) from error
    if settings.wandb_mode == "online" and not _has_key():
        message = (
            "the tracker wandb needs an API key: set WANDB_API_KEY, or run `wandb login` once, or keep the figures in files with "
            "--wandb-mode offline"
        )
        raise ConfigError(message)


def _has_key() -> bool:
    if any(os.environ.get(name) for name in _CREDENTIALS):
        return True

    host = urlsplit(os.environ.get("WANDB_BASE_URL") or _DEFAULT_SERVER).netloc
    named = os.environ.get("NETRC")
    for path in [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        try:
            if netrc.netrc(str(path.expanduser())).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
