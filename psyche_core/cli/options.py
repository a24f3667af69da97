"""click options made from the settings classes: one source for names, help texts and defaults.

An option that was not given is None and left to `load_settings`, so that the environment can fill it and an explicit argument
always wins.
"""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from psyche_core.cli.path_options import NonEmptyPath
from psyche_core.cli.reference_options import SettingsCommand, with_implied_trackers
from psyche_core.config.options.client import ClientSettings
from psyche_core.config.options.common import tracker_names
from psyche_core.config.options.groups import heading_of
from psyche_core.config.options.loading import ENVIRONMENT_PREFIX, option_fields
from psyche_core.errors import UserError
from psyche_core.option_groups import option

_Command = TypeVar("_Command", bound=Callable[..., Any])

ENVIRONMENT_NOTE = "Every option can also be set by an environment variable, PSYCHE_<OPTION>. The command line takes precedence."

_EXTRA = "psyche.plugin.options"

SHORT = {"identity_secret_key_path": "-i", "server_port": "-s"}
"""Options that also have a one-letter form."""


def settings_options(cls: type[BaseModel], *, group: str | None = None) -> Callable[[_Command], _Command]:
    """A decorator that adds one option per field of a settings class, in the order of `option_fields`.

    A field's `json_schema_extra` may say `{"short": "-w"}` for a one-letter form, `{"unit": "SECONDS"}` for the unit of its
    number, `{"aliases": ["--other-name"]}` for further names, `{"group": "Network"}` for the heading under which help shows it,
    or `{"option": False}` for a field without a command line option. group: the heading of all of them instead.
    """

    def decorate(command: _Command) -> _Command:
        for name, field in reversed(option_fields(cls).items()):
            if _extra(field).get("option", True):
                command = _option(name, field, group=heading_of(field) if group is None else group)(command)
        return command

    return decorate


class PluginOptions(SettingsCommand):
    """A command whose `--backend`, `--transport` and `--tracker` add options: those of the plugins' settings classes.

    So does `--model-store`, if its URL has the scheme of a plugin. They are available, and shown in the help, only if an option,
    the environment or the option's default names that plugin. A
    default that is not installed adds none; the command itself says what is missing.
    """

    kinds: ClassVar[tuple[str, ...]] = ("backend", "transport")
    """Kinds that add options; trackers do where the command has that option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find the plugins' names first, then parse."""
        chosen: list[tuple[str, str | None]] = [(kind, next(reversed(_named(kind, args)), None)) for kind in self.kinds]
        if any(option.name == "tracker" for option in self.params):
            args = with_implied_trackers(args, os.environ)
            chosen += [("tracker", name) for name in tracker_names(_named("tracker", args))]
        if any(option.name == "model_store" for option in self.params):
            chosen += [("store", scheme) for scheme in _store_schemes(_named("model-store", args))]
        extra: list[click.Parameter] = []
        for kind, name in chosen:
            settings = _plugin_settings(kind, name)
            if settings is not None:
                taken = {option.name for option in (*self.params, *extra)}
                extra += _extra_parameters(settings, taken, group=f"Options of the {kind} {name or default_name(kind)}")
        ctx.meta[_EXTRA] = extra
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            tracks = any(option.name == "tracker" for option in self.params)
            owner = _owner(error.option_name, (*self.kinds, *(("tracker",) if tracks else ())))
            if owner is None:
                raise
            message = f"{error.option_name} is an option of the {' '.join(owner)}; to use it, add --{' '.join(owner)}"
            raise click.UsageError(message, ctx) from error

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own, then the plugins'."""
        *own, last = super().get_params(ctx)  # the last one is --help
        return [*own, *ctx.meta.get(_EXTRA, ()), last]


class TrackerOptions(PluginOptions):
    """A command to which only trackers add options."""

    kinds: ClassVar[tuple[str, ...]] = ()


class TestnetOptions(PluginOptions):
    """A command that starts clients: their transport adds options, and trackers do."""

    __test__ = False  # not a test class, although pytest would collect it because of its name

    kinds: ClassVar[tuple[str, ...]] = ("transport",)


def option_words(settings: BaseModel | None) -> list[str]:
    """The options that give another command these settings of a plugin; what has its default is left out. Paths are absolute."""
    words: list[str] = []
    for field, value in {} if settings is None else settings.model_dump(exclude_defaults=True).items():
        option = field.replace("_", "-")
        match value:
            case bool():
                words.append(f"--{option}" if value else f"--no-{option}")
            case Path():
                words += [f"--{option}", str(value.absolute())]
            case _:
                words += [f"--{option}", str(value)]
    return words


def _named(kind: str, args: list[str]) -> list[str]:
    """The value of each `--KIND NAME` or `--KIND=NAME`, else that from the environment."""
    found = []
    for place, word in enumerate(args):
        if word == "--":
            break
        if word == f"--{kind}" and place + 1 < len(args):
            found.append(args[place + 1])
        elif word.startswith(f"--{kind}="):
            found.append(word.partition("=")[2])
    told = os.environ.get(f"{ENVIRONMENT_PREFIX}{kind.upper().replace('-', '_')}")
    return found or ([told] if told else [])


def _store_schemes(urls: list[str]) -> list[str]:
    """The scheme of the last URL, if it is that of an installed plugin; the command says what is wrong with another one."""
    from psyche_core.plugins import PluginRegistry

    scheme = urls[-1].partition("://")[0] if urls else ""
    return [scheme] if any((each.kind, each.name) == ("store", scheme) for each in PluginRegistry.discover().list()) else []


def _owner(option: str, kinds: Collection[str]) -> tuple[str, str] | None:
    """Kind and name of an installed plugin of these kinds that has the option."""
    from psyche_core.plugins import PluginRegistry
    from psyche_core.plugins.survey import surveyed

    registry = PluginRegistry.discover()
    field = option.removeprefix("--").replace("-", "_")
    for record in surveyed(registry, lambda record: record.status == "not loaded" and record.kind in kinds).records:
        if record.kind in kinds and record.status == "ok":
            settings = _plugin_settings(record.kind, record.name)
            if settings is not None and field in option_fields(settings):
                return record.kind, record.name

    return None


def default_name(kind: str) -> str:
    """The plugin of a kind that a client uses if none is named."""
    return str(ClientSettings.model_fields[kind].default)


def _plugin_settings(kind: str, name: str | None) -> type[BaseModel] | None:
    from psyche_core.plugins import PluginRegistry

    registry = PluginRegistry.discover()
    wanted = name or default_name(kind)
    try:
        settings: type[BaseModel] | None = registry.load(kind, wanted).settings  # type: ignore[union-attr]  # of these kinds
    except UserError:
        if name is not None:
            raise

        return None

    return settings


def _extra_parameters(settings: type[BaseModel], taken: Collection[str | None], *, group: str) -> list[click.Parameter]:
    @click.command()
    @settings_options(settings, group=group)
    def holder(**_: Any) -> None: ...

    return [option for option in holder.params if option.name not in taken]


def _option(name: str, field: FieldInfo, *, group: str) -> Callable[[_Command], _Command]:
    dashed = name.replace("_", "-")
    kind = _click_type(field.annotation)
    flags = [f"--{dashed}/--no-{dashed}"] if kind is bool else [f"--{dashed}"]
    flags += _extra(field).get("aliases", ())
    short = _extra(field).get("short", SHORT.get(name))
    if short is not None:
        flags.insert(0, str(short))

    return option(
        *flags,
        name,
        group=group,
        type=kind,
        multiple=_is_several(field.annotation),
        default=None,
        show_default=False,
        metavar=None if kind is bool or isinstance(kind, click.Choice) else str(_extra(field).get("unit", _metavar(kind))),
        help=_help(field),
    )


def _extra(field: FieldInfo) -> Mapping[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def _click_type(annotation: Any) -> Any:
    """The type click converts to. The settings class checks rules (ranges, lengths), because its messages are better."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        annotation = parts[0] if len(parts) == 1 else str
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
    if _is_several(annotation):
        return str
    if typing.get_origin(annotation) is Literal:
        return click.Choice(list(typing.get_args(annotation)))
    if annotation is Path:
        return NonEmptyPath(path_type=Path)

    return annotation


def _is_several(annotation: Any) -> bool:
    """Whether an option may be given several times."""
    return typing.get_origin(annotation) is tuple


def _metavar(kind: Any) -> str:
    if isinstance(kind, click.Path):
        return "PATH"

    return {str: "TEXT", int: "N", float: "X"}[kind]


def _help(field: FieldInfo) -> str:
    text = field.description or ""
    if field.is_required():
        return f"{text}  [required]"
    if field.default in (None, ()) or field.default_factory is not None:
        return text

    shown = str(field.default).lower() if isinstance(field.default, bool) else field.default
    return f"{text}  [default: {shown}]"
