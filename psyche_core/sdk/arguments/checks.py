"""Checks arguments of the SDK before anything starts. The error is one sentence with the argument's name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from psyche_core.config.sentences import did_you_mean
from psyche_core.errors import ConfigError
from psyche_core.wire.signing import SecretKey

_Parameters = ParamSpec("_Parameters")
_Self = TypeVar("_Self")
_MOST_PORT = 65535


def path_of(name: str, value: object) -> Path | None:
    """Check an optional path. Raises TypeError."""
    if not isinstance(value, Path | str | None):
        message = f"{name}= takes a path, got a {type(value).__name__}"
        raise TypeError(message)
    return None if value is None else Path(value)


def folder_of(name: str, value: object) -> Path | None:
    """Check an optional folder, which is created if missing. Raises TypeError, ConfigError for a file."""
    path = path_of(name, value)
    if path is not None and path.is_file():
        message = f"{name}={str(path)!r} is a file; give a folder (created if missing)"
        raise ConfigError(message)
    return path


def mapping_of(name: str, value: object, *, of: str) -> None:
    """Raise TypeError for a value that is neither None nor a mapping. of: what it maps, for the message."""
    if not isinstance(value, Mapping | None):
        message = f"{name}= takes a mapping of {of}, got a {type(value).__name__}"
        raise TypeError(message)


def text_of(name: str, value: object, *, example: str) -> None:
    """Raise TypeError for a value that is not a string."""
    if not isinstance(value, str):
        message = f"{name}= takes a string such as {example!r}, got a {type(value).__name__}"
        raise TypeError(message)


def port_of(name: str, value: object) -> None:
    """Raise TypeError for a value that is not a whole number, ConfigError for a number that is not a port."""
    if not isinstance(value, int) or isinstance(value, bool):
        message = f"{name}= takes a whole number, got {value!r} ({type(value).__name__})"
        raise TypeError(message)
    if not 0 <= value <= _MOST_PORT:
        message = f"{name}={value}: expected a port, 0 (any free one) to {_MOST_PORT}"
        raise ConfigError(message)


def arguments_known(
    suggestion: Callable[[str], str | None],
) -> Callable[
    [Callable[Concatenate[_Self, _Parameters], None]],
    Callable[Concatenate[_Self, _Parameters], None],
]:
    """Decorate an `__init__`: the message about an unknown argument says what to do instead, or suggests a similar one.

    suggestion: returns what to do in place of giving an argument of this name; None if nothing is known. Raises TypeError.
    """

    def decorate(init: Callable[Concatenate[_Self, _Parameters], None]) -> Callable[Concatenate[_Self, _Parameters], None]:
        known = [*inspect.signature(init).parameters][1:]

        @functools.wraps(init)
        def wrapper(self: _Self, *arguments: _Parameters.args, **named: _Parameters.kwargs) -> None:
            for name in named:
                if name not in known:
                    instead = suggestion(name)
                    elsewhere = did_you_mean(name, known) if instead is None else f"; {instead}"
                    message = f"{type(self).__name__} has no argument {name}={elsewhere}"
                    raise TypeError(message)
            init(self, *arguments, **named)

        return wrapper  # type: ignore[return-value]  # ParamSpec of a method

    return decorate


def key_given(name: str, value: object) -> None:
    """Raise TypeError if an argument is neither a key nor the path of a file with one."""
    if not isinstance(value, SecretKey | Path | str | None):
        message = f"{name}= takes a SecretKey or the path of a file with one, got a {type(value).__name__}"
        raise TypeError(message)
