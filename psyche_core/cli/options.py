"""click options made from the settings classes: one source for names, help texts and defaults.

An option that was not given arrives as None and is left to `load_settings`, so that the environment can fill it and an explicit
argument always wins.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

_Command = TypeVar("_Command", bound=Callable[..., Any])

ENVIRONMENT_NOTE = "Every option is also read from the environment, as PSYCHE_<OPTION>; an option given here wins."

SHORT = {"identity_secret_key_path": "-i", "server_port": "-s"}
"""Options that also have a one-letter form."""


def settings_options(cls: type[BaseModel]) -> Callable[[_Command], _Command]:
    """A decorator that adds one option per field of a settings class, in the order of the fields."""

    def decorate(command: _Command) -> _Command:
        for name, field in reversed(cls.model_fields.items()):
            command = _option(name, field)(command)
        return command

    return decorate


def _option(name: str, field: FieldInfo) -> Callable[[_Command], _Command]:
    dashed = name.replace("_", "-")
    kind = _click_type(field.annotation)
    flags = [f"--{dashed}/--no-{dashed}"] if kind is bool else [f"--{dashed}"]
    if name in SHORT:
        flags.insert(0, SHORT[name])

    return click.option(
        *flags,
        name,
        type=kind,
        default=None,
        show_default=False,
        metavar=None if kind is bool or isinstance(kind, click.Choice) else _metavar(kind),
        help=_help(field),
    )


def _click_type(annotation: Any) -> Any:
    """The type click converts to. Rules (ranges, lengths) are left to the settings class, which says them better."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        annotation = parts[0] if len(parts) == 1 else str
    if typing.get_origin(annotation) is Literal:
        return click.Choice(list(typing.get_args(annotation)))
    if annotation is Path:
        return click.Path(path_type=Path)

    return annotation


def _metavar(kind: Any) -> str:
    if isinstance(kind, click.Path):
        return "PATH"

    return {str: "TEXT", int: "N", float: "SECONDS"}[kind]


def _help(field: FieldInfo) -> str:
    text = field.description or ""
    if field.is_required():
        return f"{text}  [required]"
    if field.default is None or field.default_factory is not None:
        return text

    shown = str(field.default).lower() if isinstance(field.default, bool) else field.default
    return f"{text}  [default: {shown}]"
