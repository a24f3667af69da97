"""What is wrong with a registration, in one sentence, at the moment when it is made.

Dataclasses take any value, so that a dict as `settings` was accepted and failed hours later, far from the plugin's hook.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from psyche_core.hookspecs import BackendTestnet, Registration
from psyche_core.storage.model_stores.url import OWN_SCHEMES, SCHEME

_ARGUMENTS: Mapping[str, int] = MappingProxyType(
    {
        "check": 1,
        "create": 1,
        "create_part": 1,
        "create_server": 1,
        "divide": 1,
        "load": 0,
        "lose_route": 1,
        "member_options": 1,
        "observe": 1,
        "read_model": 2,
        "route": 1,
        "transport_key": 2,
    }
)
"""Functions of registrations, with their number of arguments."""

_REQUIRED = ("create", "load", "member_options")
_AWAITED = "read_model"
_FLAGS = ("needs_address", "offers_relays", "parallel")
_MUST_HAVE_SETTINGS = ("optimizer",)


def problem_of(registration: Registration, kind: str) -> str:
    """The first problem of a registration, as a sentence: what is expected and what was given. Empty if there is none."""
    return next(_problems(registration, kind), "")


def with_article(word: str) -> str:
    """`a dict`, `an object`."""
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"


def _problems(registration: Registration, kind: str) -> Iterator[str]:
    given = {field.name: getattr(registration, field.name) for field in fields(registration)}
    for name in ("name", "summary"):
        if not isinstance(given[name], str):
            yield f"{name} must be a text, got {_told(given[name])}"
    if kind == "store":
        yield from _scheme_problems(given["name"])
    if "settings" in given:
        yield from _settings_problems(given["settings"], required=kind in _MUST_HAVE_SETTINGS)
    yield from _requires_problems(given["requires"])
    for name in _FLAGS:
        if name in given and not isinstance(given[name], bool):
            yield f"{name} must be True or False, got {_told(given[name])}"
    if not isinstance(given.get("source"), Path | None):
        yield f"source must be a pathlib.Path or None, got {_told(given['source'])}"
    yield from _function_problems(given)
    if (given.get("create_part") is None) != (given.get("divide") is None):
        yield "create_part and divide belong together: give both, or neither"
    testnet = given.get("testnet")
    if not isinstance(testnet, BackendTestnet | None):
        yield f"testnet must be a BackendTestnet or None, got {_told(testnet)}"
    elif testnet is not None:
        yield from _function_problems({field.name: getattr(testnet, field.name) for field in fields(testnet)})


def _scheme_problems(name: str) -> Iterator[str]:
    """Of the name of a store, which is the scheme of URLs."""
    if not SCHEME.fullmatch(name):
        yield f"name must be the scheme of a URL without ://, small letters, digits, + and - after a letter; got {name!r:.100}"
    elif name in OWN_SCHEMES:
        yield f"name must be another scheme than {', '.join(OWN_SCHEMES)}, which are psyche-core's own, got {name}"


def _settings_problems(settings: Any, *, required: bool) -> Iterator[str]:
    if settings is None and not required:
        return

    expected = f"settings must be a pydantic model class{'' if required else ' or None'}"
    if isinstance(settings, BaseModel):
        name = type(settings).__name__
        yield f"{expected}, got an object of {name}; give the class itself, settings={name}"
    elif isinstance(settings, type) and not issubclass(settings, BaseModel):
        yield f"{expected}, got the class {settings.__name__}, which does not inherit from pydantic.BaseModel"
    elif not isinstance(settings, type):
        yield f"{expected}, got {_told(settings)}; write class Settings(BaseModel): … and give settings=Settings"


def _requires_problems(requires: Any) -> Iterator[str]:
    if not isinstance(requires, Mapping) or not all(
        isinstance(name, str) and isinstance(remedy, str) for name, remedy in requires.items()
    ):
        yield f'requires must map modules to what installs them, such as {{"torch": "pip install torch"}}, got {_told(requires)}'


def _function_problems(given: Mapping[str, Any]) -> Iterator[str]:
    for name, count in _ARGUMENTS.items():
        function = given.get(name)
        if name not in given or (function is None and name not in _REQUIRED):
            continue
        if not callable(function):
            yield f"{name} must be a function of {_counted(count)}, got {_told(function)}"
        elif inspect.iscoroutinefunction(function) and name != _AWAITED:
            yield f"{name} must be a plain function, got async def {getattr(function, '__name__', name)}"
        elif not _takes(function, count):
            yield f"{name} must be a function of {_counted(count)}, got {_signature(function)}"


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with so many arguments; also true if it does not say."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # some functions in C have no signature
        return True
    return True


def _signature(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__name__', type(function).__name__)}{inspect.signature(function)}"


def _counted(count: int) -> str:
    return {0: "no argument", 1: "one argument"}.get(count, f"{count} arguments")


def _told(value: Any) -> str:
    """The type of a value, for people."""
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else with_article(type(value).__name__)
