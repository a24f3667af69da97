"""Strangers train one language model together over the internet: protocol, SDK and programs.

Importing this package costs nothing: the names below are loaded on first use, and the packages by their own names
(`psyche_core.coordinator`, `psyche_core.client`, …). What is public: these names, and `psyche_core.interfaces`, `.hookspecs`,
`.testing` and the command line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from psyche_core.__about__ import __version__ as __version__

if TYPE_CHECKING:
    from psyche_core import errors as errors
    from psyche_core import hookspecs as hookspecs
    from psyche_core import interfaces as interfaces
    from psyche_core.errors import PsycheError as PsycheError
    from psyche_core.plugins import PluginRegistry as PluginRegistry
    from psyche_core.sdk import run_events as run_events
    from psyche_core.sdk.address import Address as Address
    from psyche_core.sdk.asgi import CoordinatorApp as CoordinatorApp
    from psyche_core.sdk.client import Client as Client
    from psyche_core.sdk.coordinator import Coordinator as Coordinator
    from psyche_core.sdk.metrics import Metrics as Metrics
    from psyche_core.sdk.run_config import RunConfig as RunConfig
    from psyche_core.sdk.run_config import load_run as load_run
    from psyche_core.sdk.train import train as train
    from psyche_core.sdk.train import train_async as train_async
    from psyche_core.sdk.trainer import train_with as train_with
    from psyche_core.sdk.trainer import train_with_async as train_with_async
    from psyche_core.telemetry import events as events
    from psyche_core.wire.signing import SecretKey as SecretKey

__all__ = [
    "Address",
    "Client",
    "Coordinator",
    "CoordinatorApp",
    "Metrics",
    "PluginRegistry",
    "PsycheError",
    "RunConfig",
    "SecretKey",
    "__version__",
    "errors",
    "events",
    "hookspecs",
    "interfaces",
    "load_run",
    "run_events",
    "train",
    "train_async",
    "train_with",
    "train_with_async",
]

_HOMES = {
    "Address": "sdk.address",
    "Client": "sdk.client",
    "Coordinator": "sdk.coordinator",
    "CoordinatorApp": "sdk.asgi",
    "Metrics": "sdk.metrics",
    "PluginRegistry": "plugins",
    "PsycheError": "errors",
    "RunConfig": "sdk.run_config",
    "SecretKey": "wire.signing",
    "load_run": "sdk.run_config",
    "train": "sdk.train",
    "train_async": "sdk.train",
    "train_with": "sdk.trainer",
    "train_with_async": "sdk.trainer",
}
_MODULES = {
    "errors": "errors",
    "events": "telemetry.events",
    "hookspecs": "hookspecs",
    "interfaces": "interfaces",
    "run_events": "sdk.run_events",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)

    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
