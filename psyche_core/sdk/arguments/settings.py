"""A client's and its backend's settings, made only from a program's arguments: environment variables and files are not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from psyche_core.config.options.client import ClientSettings
from psyche_core.config.options.loading import ENVIRONMENT_PREFIX, RAW_IDENTITY, load_settings
from psyche_core.config.sentences import validated
from psyche_core.errors import ConfigError
from psyche_core.plugins import PluginRegistry
from psyche_core.wire.signing import SecretKey

_EVENTS = "use callbacks= or client.events()"
_FIGURES = "use client.metrics, or callbacks="
_INSTEAD = {
    **dict.fromkeys(("logs", "write_log", "events_file", "events_dir", "keep_event_files", "tracker"), _EVENTS),
    **dict.fromkeys(("otlp_tracing_url", "otlp_logs_url", "otlp_auth_header", "otlp_report_interval"), _EVENTS),
    **dict.fromkeys(("metrics_local_port", "otlp_metrics_url"), _FIGURES),
    "log": "set the levels of Python's loggers, such as logging.getLogger('psyche').setLevel('DEBUG')",
    "server_addr": "give the address as the first argument",
    **dict.fromkeys(
        ("identity_secret_key_path", "raw_identity_secret_key", RAW_IDENTITY, ENVIRONMENT_PREFIX + RAW_IDENTITY), "use key="
    ),
}
"""What a program uses in place of the options with which only the command `psyche client train` does something."""


class EmbeddedSettings(ClientSettings):
    """`ClientSettings` that do not read environment variables."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  # pydantic's signature, and below
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments only."""
        return (init_settings,)


def embedded_settings(arguments: Mapping[str, Any], options: Mapping[str, Any]) -> ClientSettings:
    """Make a client's settings. arguments: None means not given. options: further fields.

    Raises ConfigError with one sentence for each problem.
    """
    for name in options:
        if name in _INSTEAD:
            message = f"options: {name} is for the command line; {_INSTEAD[name]}"
            raise ConfigError(message)
        if name in arguments:
            message = f"options: {name} is an argument of its own"
            raise ConfigError(message)

    given = {name: value for name, value in {**arguments, **options}.items() if value is not None}
    settings = validated(EmbeddedSettings, given, where="Client")
    assert isinstance(settings, ClientSettings)
    return settings


def suggestion(name: str) -> str | None:
    """Return what to do in place of giving this name as an argument; None for a name that is no option of a client."""
    if name in _INSTEAD:
        return f"it is for the command line; {_INSTEAD[name]}"
    return f"write options={{{name!r}: …}}" if name in ClientSettings.model_fields else None


def backend_settings_of(registry: PluginRegistry, backend: str, options: Mapping[str, Any]) -> BaseModel | None:
    """Return the backend's own settings, None if it has none. options: their fields. Raises ConfigError, PluginError."""
    cls = registry.load("backend", backend).settings
    if cls is None and options:
        message = f"the backend {backend} has no options, got {', '.join(options)}"
        raise ConfigError(message)
    return None if cls is None else load_settings(cls, dict(options))


def own_key(registry: PluginRegistry, settings: ClientSettings, backend_settings: BaseModel | None) -> SecretKey:
    """Return one key for all restarts of a client: made by the backend from its settings, or else a new one."""
    make = registry.load("backend", settings.backend).transport_key
    key: SecretKey = SecretKey.generate() if make is None else make(settings.run_id, backend_settings)
    return key
