"""Options that several commands of `psyche bench` have, and their headings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click

from psyche_core.option_groups import option

_Command = TypeVar("_Command", bound=Callable[..., Any])
Decorator: TypeAlias = Callable[[_Command], _Command]

MODEL_AND_DATA, TRAININGS, COMPUTE, OUTPUT = "Model and data", "Trainings", "Compute", "Output"

PATH: click.Path = click.Path(path_type=Path)


def state_option(used: str) -> Decorator[Any]:
    """--state. used: the parts of the run file that the command uses."""
    return option("--state", type=PATH, required=True, group=MODEL_AND_DATA, help=f"Run file: its {used} are used.")


data_option: Decorator[Any] = option(
    "--data", type=PATH, required=True, group=MODEL_AND_DATA, help="Token file or folder of them."
)
validation_data_option: Decorator[Any] = option(
    "--validation-data", type=PATH, group=MODEL_AND_DATA, help="Held-out tokens.  [default: DATA/validation]"
)
token_size_option: Decorator[Any] = option(
    "--token-size",
    type=click.Choice(["TwoBytes", "FourBytes"]),
    default="TwoBytes",
    show_default=True,
    group=MODEL_AND_DATA,
    help="Bytes per token of all token files.",
)
base_option: Decorator[Any] = option(
    "--base",
    type=PATH,
    group=MODEL_AND_DATA,
    help="Folder at which relative paths of the run file start; default: the run file's folder.",
)
device_option: Decorator[Any] = option(
    "--device", default="auto", show_default=True, group=COMPUTE, help="As for `psyche client train`."
)
torch_threads_option: Decorator[Any] = option(
    "--torch-threads", type=click.IntRange(1), metavar="N", group=COMPUTE, help="CPU threads for torch; default: chosen by torch."
)
json_option: Decorator[Any] = option(
    "--json", "as_json", is_flag=True, group=OUTPUT, help="One JSON object on standard output, for programs."
)


def seeds_option(default: int, text: str) -> Decorator[Any]:
    """--seeds: number of trainings."""
    return _count("--seeds", click.IntRange(1, 100), default=default, text=text)


def steps_option(default: int, text: str) -> Decorator[Any]:
    """--steps: of each training."""
    return _count("--steps", click.IntRange(4), default=default, text=text)


def members_option(default: int) -> Decorator[Any]:
    """--members: that train together."""
    return _count("--members", click.IntRange(1, 256), default=default, text="Number of members.")


def out_option(files: str) -> Decorator[Any]:
    """--out. files: that the command writes there."""
    return option("--out", type=PATH, group=OUTPUT, help=f"Folder for {files}.  [default: nothing is kept]")


def _count(flag: str, allowed: click.IntRange, *, default: int, text: str) -> Decorator[Any]:
    return option(flag, type=allowed, default=default, show_default=True, metavar="N", group=TRAININGS, help=text)
