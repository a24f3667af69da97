"""From a record to a registration: import the module, compare API versions, call the hook, check what it gives.

Each module has its own plugin manager, so a broken plugin cannot disturb another.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import pluggy

from psyche_core import hookspecs
from psyche_core.plugin_exits import ADVICE, Exited, exits_refused
from psyche_core.plugins.records import PluginRecord, Status
from psyche_core.plugins.registration_checks import problem_of, with_article

HOOKS: Mapping[str, tuple[str, type[hookspecs.Registration]]] = MappingProxyType(
    {
        "backend": ("psyche_register_backends", hookspecs.BackendRegistration),
        "optimizer": ("psyche_register_optimizers", hookspecs.OptimizerRegistration),
        "data": ("psyche_register_data", hookspecs.DataRegistration),
        "transport": ("psyche_register_transports", hookspecs.TransportRegistration),
        "model": ("psyche_register_models", hookspecs.ModelRegistration),
        "sharding": ("psyche_register_sharding", hookspecs.ShardingRegistration),
        "relay": ("psyche_register_relays", hookspecs.RelayRegistration),
        "tracker": ("psyche_register_trackers", hookspecs.TrackerRegistration),
        "store": ("psyche_register_model_stores", hookspecs.ModelStoreRegistration),
        "command": ("psyche_register_commands", hookspecs.CommandRegistration),
    }
)
"""By kind: the hook and what it registers."""


_printing = threading.RLock()
"""Held while standard output is redirected. If two threads' blocks overlapped, the last one to end could leave it redirected."""


class PluginApiWarning(UserWarning):
    """A plugin needs a newer minor version of the plugin API than this core knows."""


class Refused(Exception):
    """An entry point cannot be used; becomes the record's status and cause."""

    def __init__(self, status: Status, cause: str) -> None:
        super().__init__(cause)
        self.status: Status = status


def registration_of(record: PluginRecord) -> tuple[hookspecs.Registration, str]:
    """The checked registration of an entry point, and the API version of its module. Raises Refused."""
    module = imported(record)
    api = checked_api(module, record)
    registration = _named(_registered(module, record), record)
    problem = problem_of(registration, record.kind)
    if problem:
        hook_name, of_type = HOOKS[record.kind]
        cause = f"{hook_name} registered {with_article(of_type.__name__)} that is wrong: {problem}"
        raise Refused("failed", cause)

    missing = missing_modules(registration)
    if missing:
        told = "; ".join(f"it needs the module {name}, which is not installed: {remedy}" for name, remedy in missing.items())
        raise Refused("incomplete", told)

    return registration, api


def imported(record: PluginRecord) -> ModuleType:
    """The module of an entry point. Raises Refused."""
    try:
        with _foreign_code(record):
            return importlib.import_module(record.module)
    except Exited as error:
        cause = f"importing it called {error}, {ADVICE}"
        raise Refused("failed", cause) from error
    except (Exception, SystemExit) as error:  # importing runs foreign code
        cause = f"importing it failed with {type(error).__name__}: {error}"
        raise Refused("failed", cause) from error


def checked_api(module: ModuleType, record: PluginRecord) -> str:
    """The plugin API for which a module was written. Raises Refused; warns with PluginApiWarning of a newer minor one."""
    ours = f"{hookspecs.PLUGIN_API[0]}.{hookspecs.PLUGIN_API[1]}"
    text = getattr(module, "PSYCHE_PLUGIN_API", None)
    try:
        major, minor = (int(part) for part in str(text).split("."))
    except ValueError:
        cause = f'its module must define PSYCHE_PLUGIN_API = "{ours}", got {text!r}'
        raise Refused("incompatible", cause) from None

    if major != hookspecs.PLUGIN_API[0]:
        older = "psyche-core" if major > hookspecs.PLUGIN_API[0] else record.distribution
        cause = f"it was written for plugin API {text}, this core has {ours}; upgrade {older}"
        raise Refused("incompatible", cause)
    if minor > hookspecs.PLUGIN_API[1]:
        message = f"{record.entry_point} ({record.origin}) was written for plugin API {text}, this core has {ours}"
        warnings.warn(message, PluginApiWarning, stacklevel=2)

    return str(text)


def missing_modules(registration: hookspecs.Registration) -> dict[str, str]:
    """Of the modules that a registration requires, those that are not installed, with what to type; imports nothing."""
    missing = {}
    for name, remedy in registration.requires.items():
        try:
            found = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):  # the parent of a submodule is missing, or a module has no spec
            found = False
        if not found:
            missing[name] = remedy
    return missing


@contextlib.contextmanager
def _foreign_code(record: PluginRecord) -> Iterator[None]:
    """Call a plugin's code. What it prints goes to standard error: standard output is the command's own, and may be JSON."""
    with _printing, contextlib.redirect_stdout(sys.stderr), exits_refused(_called(record)):
        yield


def _registered(module: ModuleType, record: PluginRecord) -> list[hookspecs.Registration]:
    """What the module's hook of the record's kind returns. Raises Refused."""
    hook_name, of_type = HOOKS[record.kind]
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module, name=record.module)
        manager.check_pending()
        caller = getattr(manager.hook, hook_name)
        with _foreign_code(record):
            answers: list[Any] = caller()
    except Exited as error:
        cause = f"{hook_name} called {error}, {ADVICE}"
        raise Refused("failed", cause) from error
    except (Exception, SystemExit) as error:  # foreign code may raise anything
        cause = f"{hook_name} failed with {type(error).__name__}: {error}"
        raise Refused("failed", cause) from error

    if not answers and not caller.get_hookimpls():
        cause = f"its module has no @hookimpl function {hook_name}"
        raise Refused("failed", cause)

    registered = answers[0] if answers else None  # pluggy leaves out what returns None
    if inspect.iscoroutine(registered):
        registered.close()
        cause = f"{hook_name} must be a plain function, got async def {hook_name}"
        raise Refused("failed", cause)
    if not isinstance(registered, list | tuple):
        cause = f"{hook_name} must return a list of {of_type.__name__}, got {type(registered).__name__}"
        raise Refused("failed", cause)

    wrong = [type(item).__name__ for item in registered if not isinstance(item, of_type)]
    if wrong:
        cause = f"{hook_name} must return a list of {of_type.__name__}, got one with {with_article(wrong[0])} in it"
        raise Refused("failed", cause)

    return list(registered)


def _named(registered: list[hookspecs.Registration], record: PluginRecord) -> hookspecs.Registration:
    """The only registration with the record's name. Raises Refused."""
    named = [item for item in registered if item.name == record.name]
    if len(named) != 1:
        names = ", ".join(str(item.name) for item in registered) or "nothing"
        cause = f"{HOOKS[record.kind][0]} must register {record.name} exactly once, got {names}"
        raise Refused("failed", cause)

    return named[0]


def _called(record: PluginRecord) -> str:
    return f"the plugin {record.entry_point} ({record.origin}, module {record.module})"
