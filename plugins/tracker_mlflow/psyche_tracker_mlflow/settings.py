"""The options of this tracker, beside those of `psyche client train`, and whether they can work here.

User name, password and token are not among them, because every user of a machine can read command lines: they come from the
variables that MLflow's own client reads.
"""

from __future__ import annotations

import base64
import os
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from psyche_core.errors import ConfigError

USERNAME, PASSWORD, TOKEN = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"
OPTION = "--mlflow-tracking-uri"


def _both(option: str, theirs: str) -> AliasChoices:
    """Our variable, then MLflow's own."""
    return AliasChoices(f"PSYCHE_{option.upper()}", theirs)


class MlflowSettings(BaseSettings):
    """Which server the figures go to, and under which names."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="PSYCHE_", extra="forbid", frozen=True, env_ignore_empty=True, populate_by_name=True
    )

    mlflow_tracking_uri: str | None = Field(
        default=None,
        validation_alias=_both("mlflow_tracking_uri", "MLFLOW_TRACKING_URI"),
        description="Address of the MLflow server, such as http://127.0.0.1:5000. Needed.",
    )
    mlflow_experiment: str = Field(
        default="psyche",
        min_length=1,
        max_length=500,
        validation_alias=_both("mlflow_experiment", "MLFLOW_EXPERIMENT_NAME"),
        description="Experiment that holds the runs; made if it is not there.",
    )
    mlflow_run_name: str | None = Field(
        default=None,
        validation_alias=_both("mlflow_run_name", "MLFLOW_RUN_NAME"),
        description="Name of this client's run in the experiment. Default: run and key.",
    )


def check(settings: Any) -> None:
    """Look at the address and at the variables with credentials. Sends nothing. Raises ConfigError."""
    server_address(settings)
    authorization()


def server_address(settings: MlflowSettings) -> str:
    """The server's address without a slash at its end. Raises ConfigError unless it is one of HTTP without credentials in it."""
    given = settings.mlflow_tracking_uri
    if given is None:
        message = f"the tracker mlflow needs the address of an MLflow server: {OPTION} http://HOST:5000, or MLFLOW_TRACKING_URI"
        raise ConfigError(message)

    try:
        parts = urlsplit(given)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        message = f"{OPTION}: got {given.rpartition('@')[2]!r}, expected the address of an MLflow server, http://HOST[:PORT]"
        raise ConfigError(message)
    if "@" in parts.netloc:
        message = f"{OPTION} must hold no password, which other users of this machine could read; set {USERNAME} and {PASSWORD}"
        raise ConfigError(message)
    if parts.query or parts.fragment:
        message = f"{OPTION}: got {given!r}, expected an address without ? and #"
        raise ConfigError(message)

    return given.rstrip("/")


def authorization() -> str | None:
    """The header `Authorization`, from the environment as MLflow's client makes it; None without credentials.

    Raises ConfigError for half a pair, and for what no header can hold.
    """
    username, password, token = (os.environ.get(name, "").strip() for name in (USERNAME, PASSWORD, TOKEN))
    if username and password:
        return f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"
    if token:
        if not (token.isascii() and token.isprintable()):
            message = f"{TOKEN} holds characters that no HTTP header can hold"
            raise ConfigError(message)

        return f"Bearer {token}"
    if username or password:
        there, missing = (USERNAME, PASSWORD) if username else (PASSWORD, USERNAME)
        message = f"{there} is set and {missing} is not; the tracker mlflow needs both, or {TOKEN}"
        raise ConfigError(message)

    return None
