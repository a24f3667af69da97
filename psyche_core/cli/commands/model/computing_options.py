"""Options of the commands that load a model to use it: where and in which numbers it computes, and whose tokenizer it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., object])


def computing_options(*dtypes: str, help: str) -> Callable[[_Command], _Command]:  # noqa: A002  # click's name
    """Add --device, --compute-dtype, --tokenizer and --torch-threads. dtypes: choices, the default first. help: about them."""
    options = (
        click.option("--device", default="auto", show_default=True, help="auto, cpu, mps, cuda or cuda:N."),
        click.option("--compute-dtype", type=click.Choice(dtypes), default=dtypes[0], show_default=True, help=help),
        click.option("--tokenizer", type=click.Path(path_type=Path), help="Folder of the tokenizer, if the model's has none."),
        click.option("--torch-threads", type=click.IntRange(min=1), help="CPU threads for torch; default: chosen by torch."),
    )

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
