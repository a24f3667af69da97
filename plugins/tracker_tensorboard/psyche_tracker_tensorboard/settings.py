"""The options of this tracker, beside those of `psyche client train`, and whether they can work here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from psyche_core.errors import ConfigError


class TensorboardSettings(BaseSettings):
    """Where the files go."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="PSYCHE_", extra="forbid", frozen=True, env_ignore_empty=True
    )

    tensorboard_dir: Path = Field(
        default=Path("tensorboard"),
        description=(
            "Folder for TensorBoard's event files; each client has a folder in it, named after run and client. Show them with "
            "`tensorboard --logdir FOLDER`."
        ),
    )


def check(settings: Any) -> None:
    """Make the folder. Raises ConfigError if that is not possible."""
    folder: Path = settings.tensorboard_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot write TensorBoard files into {folder}: {error.strerror}; give a folder with --tensorboard-dir"
        raise ConfigError(message) from error
