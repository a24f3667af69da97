"""Writes docs/reference/run-configuration.md: every key of a run file and of a data file, from the classes that read them.

    python tools/run_configuration.py --write

Without --write it prints the page. tests/docs/test_run_configuration.py compares the page with what this makes.
"""

from __future__ import annotations

import argparse
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from run_configuration_keys import described

from psyche_core.config import data_file, schema
from psyche_core.plugins import PluginRegistry

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "run-configuration.md"

INTRODUCTION = """\
# Run configuration

Every key of a run file (`state.toml`, or an owner's `config.toml`) and of a data file (`data.toml`). The keys and their names are
those of the reference implementation; keys that it does not have say so. An unknown key is an error.
`psyche server validate-config --state state.toml` checks a file; `psyche preview-lr --state state.toml` shows its learning rates.

This page is written by `tools/run_configuration.py` from the code that reads the files.
"""
OUR_PLUGINS = ("psyche-core", "psyche-backend-tcp", "psyche-data-http", "psyche-optim-distro", "psyche-optim-sparseloco")
_NAMES = {
    "Choice": "name or table",
    "Path": "path",
    "str": "string",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
}


def page() -> str:
    """The page."""
    return "\n".join([INTRODUCTION, *_tables(), *_plugins("data", "Data locations", "model.LLM.data_location"),
                      *_plugins("optimizer", "Optimizers", "model.LLM.optimizer"), *_data_file()])  # fmt: skip


def _tables() -> Iterator[str]:
    yield from _table("Top level", schema.RunFile)
    yield from _table("`[config]`", schema.CoordinatorConfig)
    yield from _table("`[model.LLM]`", schema.LLMConfig)
    yield from _table("`[model.network]`", schema.NetworkConfig)
    yield from _table("`[model.verification]`", schema.VerificationConfig)
    yield from _table("`[progress]`", schema.ProgressConfig)
    yield "## Learning-rate schedules\n"
    yield "`model.LLM.lr_schedule` is one of these tables, for instance `[model.LLM.lr_schedule.Cosine]`.\n"
    for name, table in schema.LR_SCHEDULES.items():
        yield from _choice(name, table)
    yield "## Checkpoints\n"
    yield "`model.LLM.checkpoint` is one of these. A run's own coordinator writes P2P and P2PGcs once members have the model.\n"
    for name, table in schema.CHECKPOINTS.items():
        yield from _choice(name, table)


def _data_file() -> Iterator[str]:
    yield from _table("Data file", data_file.DataFile)
    yield from _table("`[text]` of a data file", data_file.TextSource)


def _choice(name: str, table: type[schema.Table] | None) -> Iterator[str]:
    if table is None:
        yield f"### {name}\n\nHas no keys.\n"
    else:
        yield from _table(name, table, level=3)


def _table(title: str, table: type[schema.Table], *, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {title}\n"
    yield "| key | type | unit | default | bounds | effect |\n|---|---|---|---|---|---|"
    for name, field in table.model_fields.items():
        key = described(table, name)
        bounds = key.rule or _bounds(field)
        yield f"| `{name}` | {_kind(field)} | {key.unit} | {_default(field)} | {bounds} | {key.effect} |"
    yield ""


def _plugins(kind: Literal["data", "optimizer"], title: str, key: str) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"`{key}` is the name of a plugin, alone or with a table of settings. These come with this repository.\n"
    registry = PluginRegistry.discover()
    for record in sorted(registry.list(), key=lambda each: each.name):
        if record.kind != kind or record.distribution not in OUR_PLUGINS:
            continue
        registration = registry.load(kind, record.name)
        yield f"### {record.name}\n\n{registration.summary[0].upper()}{registration.summary[1:]} (`{record.distribution}`).\n"
        settings = registration.settings
        if settings is None:
            yield "Has no keys.\n"
            continue
        if settings.__doc__:
            yield " ".join(settings.__doc__.split()).replace("|", "\\|") + "\n"
        yield "| key | type | default | bounds | effect |\n|---|---|---|---|---|"
        for name, field in settings.model_fields.items():
            effect = " ".join((field.description or "").split()).replace("|", "\\|")
            yield f"| `{field.alias or name}` | {_kind(field)} | {_default(field)} | {_bounds(field)} | {effect} |"
        yield ""


def _kind(field: FieldInfo) -> str:
    return _type_name(field.annotation).replace("|", "\\|")


def _type_name(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type_name(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type_name(each) for each in arguments if each is not type(None)))
    if origin in (tuple, list):
        return f"list of {_type_name(arguments[0])}s" if arguments else "list"
    if origin is dict or annotation is dict:
        return "table"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    return _NAMES.get(getattr(annotation, "__name__", ""), "value")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{list(value)}`" if isinstance(value, tuple) else f"`{value}`"


def _bounds(field: FieldInfo) -> str:
    found = []
    for rule in field.metadata:
        match rule:
            case Ge(ge=least):
                found.append(f"at least {least}")
            case Gt(gt=above):
                found.append(f"above {above}")
            case Le(le=most):
                found.append(f"at most {most}")
            case Lt(lt=below):
                found.append(f"below {below}")
            case MinLen(min_length=least):
                found.append(f"at least {least} long")
            case MaxLen(max_length=most):
                found.append(f"at most {most} long")
    return ", ".join(found)


def main() -> int:
    """Print or write the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true", help=f"Write {PAGE.name}.")
    if options.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
