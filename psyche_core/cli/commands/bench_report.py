"""What `psyche bench` keeps in --out: a report of finished trainings, so that the same command goes on where it stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from psyche_core.cli.missing_tokens import make_missing_tokens
from psyche_core.errors import ConfigError

Read = TypeVar("Read")


def read_report(path: Path, facts: Mapping[str, Any], *, command: str, read: Callable[[dict[str, Any]], Read]) -> Read | None:
    """What `read` makes of a report that an earlier call kept; None if there is none.

    facts: what must be equal for the trainings to belong together. command: that wrote it, for messages. Raises ConfigError for
    what is no report of the command, and for one with other facts.
    """
    if not path.exists():
        return None

    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        other = [name for name, value in facts.items() if report.get(name) != value]
        found = None if other else read(report)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{path} is not a report of `{command}`; choose another folder with --out, or delete the file"
        raise ConfigError(message) from error
    if other:
        message = (
            f"{path} belongs to another experiment ({', '.join(other)} differ); choose another folder with --out, or delete "
        )
        raise ConfigError(message + "the file")

    return found


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write a report in place of the one before, whole or not at all. Raises ConfigError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".json.partial")
        partial.write_text(json.dumps(report, indent=1) + "\n")
        partial.replace(path)
    except OSError as error:
        message = f"cannot write {path}: {error.strerror}; give another folder with --out"
        raise ConfigError(message) from error


def tell_kept(path: Path | None, count: int) -> None:
    """Say what earlier calls trained, and what is kept if this one is stopped. count: trainings in the report."""
    if path is None:
        click.echo("nothing is kept if this is stopped; with --out each training is kept as soon as it is finished", err=True)
    elif count:
        click.echo(f"{count} trainings are taken from {path}", err=True)
    else:
        click.echo(f"each finished training is kept in {path}: the same command goes on where it stopped", err=True)


def check_tokens(data: Path, validation: Path | None) -> None:
    """Raise ConfigError unless the token files, or folders of them, exist. Missing ones of a data.toml are made."""
    make_missing_tokens(data, validation)
    for folder in (data, validation):
        if folder is not None and not folder.exists():
            message = (
                f"there is no {folder}; give token files, or a folder of them: `psyche data tokenize` makes them of text, and "
            )
            raise ConfigError(message + "`make demo` the example's")


def learning_rate(_context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Check the value of an option that is a learning rate (a callback of click)."""
    if value is not None and not (math.isfinite(value) and value > 0):
        message = f"a learning rate is a number above 0, got {value}"
        raise click.BadParameter(message, param=parameter)
    return value
