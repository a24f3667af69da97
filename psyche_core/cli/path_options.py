"""Refuses an empty path for every option and argument that takes a file or a folder, also those of plugins' commands.

click and pathlib read an empty path as the current folder, and click reads an empty environment variable as none. Both are what
an unset shell variable gives, as in `--save-state-dir "$STATE"`: a server would keep its state in another place, or nowhere.
Variables of settings classes are checked in `config.options.loading`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from psyche_core.config.options.loading import EMPTY_PATH


class NonEmptyPath(click.Path):
    """A path that is not empty."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Convert the value. Fails for an empty one."""
        if value == "":
            self.fail(EMPTY_PATH, param, ctx)
        return super().convert(value, param, ctx)


def refuse_empty_paths(command: click.Command) -> None:
    """Let a command and the commands below it refuse empty paths. Calling it again changes nothing."""
    for parameter in command.params:
        _check(parameter)
    if isinstance(command, click.Group) and not isinstance(command.get_command, _CommandsBelow):
        command.get_command = _CommandsBelow(command.get_command)  # type: ignore[method-assign]  # groups find theirs in many ways


@dataclass(frozen=True, slots=True)
class _CommandsBelow:
    """A group's `get_command`, whose commands refuse empty paths."""

    found: Callable[[click.Context, str], click.Command | None]

    def __call__(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = self.found(ctx, cmd_name)
        if command is not None:
            refuse_empty_paths(command)
        return command


def _check(parameter: click.Parameter) -> None:
    kind = parameter.type
    if isinstance(kind, click.Tuple):
        kind.types = [_checked(each) for each in kind.types]
    if not isinstance(kind, click.Path) or isinstance(kind, NonEmptyPath):
        return

    parameter.type = _checked(kind)
    if isinstance(parameter.envvar, str):
        parameter.callback = _variable_checked(parameter.envvar, parameter.callback)


def _checked(kind: click.ParamType[Any]) -> click.ParamType[Any]:
    """The same type, if it is one of paths, without the empty path."""
    if type(kind) is not click.Path:
        return kind

    checked = NonEmptyPath()
    vars(checked).update(vars(kind))
    return checked


def _variable_checked(variable: str, then: Callable[..., Any] | None) -> Callable[..., Any]:
    """A parameter's callback that refuses an empty variable where nothing else gave a value."""

    def check(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value in (None, ()) and os.environ.get(variable) == "":
            raise click.BadParameter(EMPTY_PATH, ctx, parameter, param_hint=variable)
        return value if then is None else then(ctx, parameter, value)

    return check
