"""`psyche plugins`: what is installed, from where, what is broken and why; a new one of your own."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psyche_core.cli.commands.plugins_update import update_project
from psyche_core.cli.lazy import WholeSummaries, example
from psyche_core.cli.path_options import NonEmptyPath
from psyche_core.hookspecs import KINDS

if TYPE_CHECKING:
    from psyche_core.plugins import PluginRecord, PluginRegistry, Records

WIDTH_OF_FILES = 200
"""Line width if the output is not a terminal. It keeps a plugin on one line, for grep."""

_UNUSED = ("disabled", "shadowed", "not installed")
"""Statuses that only `--all` shows: nothing is wrong with these plugins."""

TEMPLATE_KINDS = ("optimizer", "data", "model", "tracker", "backend", "transport", "sharding", "relay", "store", "command")
"""As in psyche_core.plugins.projects, which is slow to import for help; a test compares them."""

_EXTENDED = ("doctor",)
"""Our commands to which a plugin's command of the same name adds, instead of being hidden by it."""


@click.group(cls=WholeSummaries, context_settings={"max_content_width": 110})
def plugins() -> None:
    """List the installed plugins, and say which are broken and why. Make a new one."""


plugins.add_command(update_project)


@plugins.command(
    "new",
    epilog=example(
        "psyche plugins new optimizer MajorityVote",
        "psyche plugins new tracker spreadsheet --out ../spreadsheet",
        note="The project has an entry point, settings, a small implementation that works, the conformance test and tests of its "
        "own, a README, a licence, a CI file, and but for tracker, relay, store and command a run file that trains with it. "
        "Then: pip install -e '.[test]', psyche plugins check, pytest.",
    ),
)
@click.argument("kind", type=click.Choice(TEMPLATE_KINDS))
@click.argument("name")
@click.option(
    "--out", type=NonEmptyPath(path_type=Path), help="Folder of the project; default: psyche-KIND-NAME in the current folder."
)
@click.pass_context
def new_plugin(context: click.Context, kind: str, name: str, *, out: Path | None) -> None:
    """Make the project of a new plugin. NAME is what runs and options will call it.

    Optimizers, data and models are named in run files, such as MajorityVote; the names of the others are typed, so they have no
    capital letters. The names of distribution and package follow from it.
    """
    from psyche_core.errors import UserError
    from psyche_core.plugins.projects import make_project

    if kind == "command" and name in _own_commands(context):
        message = f"psyche has the command {name} itself, so a plugin's would never be used; choose another name"
        raise UserError(message)
    folder = make_project(kind, name, out=out)
    click.echo(f"made {folder}; next: cd {folder} && pip install -e '.[test]' && psyche plugins check {kind}.{name} && pytest")


@plugins.command(
    "list",
    epilog=example(
        "psyche plugins list --kind optimizer",
        "psyche plugins list --all",
        note="status: ok; failed; incompatible (another plugin API); incomplete (a module that it needs is missing); duplicate "
        "(two distributions have the name: say distribution:Name); with --all also disabled (--disable-plugin, "
        "PSYCHE_DISABLE_PLUGINS, PSYCHE_PLUGINS), shadowed (another one of the name is used) and not installed.",
    ),
)
@click.option("--json", "as_json", is_flag=True, help="One JSON array, for programs.")
@click.option("--kind", type=click.Choice(KINDS), help="Only plugins of this kind.")
@click.option("--all", "show_all", is_flag=True, help="Also plugins that are switched off, shadowed, or known and not installed.")
@click.pass_context
def list_plugins(context: click.Context, *, as_json: bool, kind: str | None, show_all: bool) -> None:
    """List every plugin: kind, name, distribution, version, status and summary, or why it is not used."""
    from psyche_core.plugins import PluginRegistry
    from psyche_core.plugins.survey import surveyed
    from psyche_core.text_safety import printable

    registry = PluginRegistry.discover()
    survey = surveyed(registry, lambda record: record.status == "not loaded" and kind in (None, record.kind))
    everything = [*_with_shadowed(survey.records, context), *registry.not_installed()]
    records = [record for record in everything if kind in (None, record.kind)]
    shown = [record for record in records if show_all or record.status not in _UNUSED]
    if as_json:
        click.echo(json.dumps([asdict(record) for record in shown], indent=2))
    else:
        _print_table(sorted(shown, key=lambda record: (record.kind, record.name, record.distribution)))
        off = sum(record.status in ("disabled", "shadowed") for record in records)
        if off and not show_all:
            click.echo(f"{off} more are switched off or shadowed: psyche plugins list --all", err=True)
    for record in survey.ended:
        click.echo(printable(f"{record.entry_point} ({record.origin}): {record.cause}"), err=True)


def _with_shadowed(records: Records, context: click.Context) -> Records:
    """Records in which commands of plugins that have the name of one of our commands are marked."""
    own = _own_commands(context)
    cause = "psyche has a command of this name itself, which is used"
    return [
        replace(record, status="shadowed", cause=cause) if record.kind == "command" and record.name in own else record
        for record in records
    ]


def _own_commands(context: click.Context) -> tuple[str, ...]:
    """The names of commands that a plugin cannot have."""
    own: tuple[str, ...] = getattr(context.find_root().command, "own", ())
    return tuple(name for name in own if name not in _EXTENDED)


def _print_table(records: Records) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from psyche_core.text_safety import printable

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("kind", "name", "distribution", "version", "status", "summary"):
        table.add_column(column, overflow="fold", no_wrap=column != "summary")
    for record in records:
        colour = "green" if record.status == "ok" else "yellow" if record.status in _UNUSED else "red"
        words = (record.name, record.distribution, record.version)
        text = Text(printable(record.cause or record.summary))
        table.add_row(record.kind, *(Text(printable(word)) for word in words), Text(record.status, style=colour), text)
    Console(width=None if sys.stdout.isatty() else WIDTH_OF_FILES).print(table)


@plugins.command(
    "check",
    epilog=example(
        "psyche plugins check optimizer.MajorityVote",
        "psyche plugins check TinyRnn --model-config run/model/config.json --json",
        note="Exit status: 0 if no step failed (warnings and skipped steps are none), 2 otherwise.",
    ),
)
@click.argument("name")
@click.option("--settings", "settings", metavar="JSON", help="The plugin's own table, as a JSON object; default: no keys.")
@click.option("--model-config", type=NonEmptyPath(path_type=Path), help="For a model: the config.json of a small one to test.")
@click.option(
    "--drops-refused", is_flag=True, help="For an optimizer that drops what was not accepted, and documents it: do not test it."
)
@click.option("--no-conformance", is_flag=True, help="Leave out the conformance tests, which may take a minute.")
@click.option("--no-training", is_flag=True, help="Leave out the training of two processes, which takes about half a minute.")
@click.option("--json", "as_json", is_flag=True, help="For programs: an object with plugin, origin, ok and steps.")
def check_one(
    name: str,
    *,
    settings: str | None,
    model_config: Path | None,
    drops_refused: bool,
    no_conformance: bool,
    no_training: bool,
    as_json: bool,
) -> int:
    """Check a plugin in steps, each a sentence.

    The steps: import, plugin API, registration, settings, dependencies, factory, conformance, training.

    NAME is `Name`, `kind.Name`, or one of these behind `distribution:`. No test file is needed; conformance tests that need what
    only the author knows are left to his tests. At the end a tiny model is trained on this machine, by two members or, for a
    sharding engine, by two processes of one; a terminal shows how far that is. Relative paths in --settings start in the
    current folder.
    """
    from psyche_core.cli.plugin_check import Given, check_plugin
    from psyche_core.cli.plugin_names import named, unknown
    from psyche_core.cli.progress_line import ProgressLine
    from psyche_core.errors import PluginError
    from psyche_core.plugins import PluginRegistry
    from psyche_core.text_safety import printable

    registry = PluginRegistry.discover()
    found = named(name, registry.list())
    if not found:
        raise unknown(name, registry.list(), registry.not_installed())
    if len(found) > 1:
        several = ", ".join(f"{record.distribution}:{record.entry_point}" for record in found)
        message = f"{name} may be one of {several}; name one of them"
        raise PluginError(message)
    if found[0].status == "disabled":
        message = f"{found[0].entry_point} ({found[0].origin}) is disabled ({found[0].cause}), so it cannot be checked"
        raise PluginError(message)

    given = Given(
        settings=_json_object(settings, "--settings"),
        model_config=None if model_config is None else _json_object(_read(model_config), str(model_config)),
        drops_refused=drops_refused,
        conformance=not no_conformance,
        training=not no_training,
    )
    (record,) = found
    steps = []
    progress, out = ProgressLine(sys.stderr), sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # what the plugin prints is no step, and no JSON
        for step in check_plugin(record, given, tell=progress.tell):
            progress.clear()
            steps.append(step)
            if not as_json:
                click.echo(printable(f"{step.outcome:<8} {step.name:<13} {step.sentence}"), file=out)
    failed = any(step.outcome == "failed" for step in steps)
    if as_json:
        told = {"plugin": record.entry_point, "origin": record.origin, "ok": not failed, "steps": list(map(asdict, steps))}
        click.echo(json.dumps(told, indent=2))
    return 2 if failed else 0


def _read(path: Path) -> str:
    from psyche_core.errors import UserError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        message = f"cannot read {path}: {error}"
        raise UserError(message) from error


def _json_object(text: str | None, what: str) -> dict[str, Any]:
    """A JSON object; an empty one for None. Raises UserError."""
    from psyche_core.errors import UserError

    try:
        found = {} if text is None else json.loads(text)
    except ValueError as error:
        message = f"{what} must be a JSON object: {error}"
        raise UserError(message) from error
    if not isinstance(found, dict):
        message = f"{what} must be a JSON object, got a {type(found).__name__}"
        raise UserError(message)

    return found


@plugins.command(
    "show",
    epilog=example(
        "psyche plugins show optimizer.Distro",
        "psyche plugins show --json data.Http",
        note="--json prints an array of objects with the record of the plugin and its settings: by key the type, whether it is "
        "required, default, choices, bounds (words of JSON Schema) and description.",
    ),
)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON array, with the fields of the settings.")
def show_plugin(name: str, *, as_json: bool) -> None:
    """Show everything that is known about a plugin, with its settings.

    NAME is `Name`, `kind.Name`, or one of these behind `distribution:`.
    """
    from psyche_core.cli.plugin_names import named, unknown
    from psyche_core.plugins import PluginRegistry
    from psyche_core.plugins.survey import surveyed

    registry = PluginRegistry.discover()
    missing = registry.not_installed()
    found = named(name, [*surveyed(registry, lambda record: bool(named(name, [record]))).records, *missing])
    if not found:
        raise unknown(name, registry.list(), missing)

    if as_json:
        told = [{**asdict(record), "settings": _settings(registry, record)} for record in found]
        click.echo(json.dumps(told, indent=2, default=str))
        return

    for record in found:
        _print_record(record, _settings(registry, record))


def _settings(registry: PluginRegistry, record: PluginRecord) -> dict[str, dict[str, Any]] | None:
    """The keys of a plugin's settings; None if it takes none or cannot be used. Raises PluginFailed."""
    from psyche_core.errors import PluginFailed
    from psyche_core.plugins import described_settings

    if not (record.status == "ok" or (record.status == "duplicate" and record.api)):
        return None

    model = getattr(registry.load(record.kind, f"{record.distribution}:{record.name}"), "settings", None)
    try:
        return None if model is None else described_settings(model)
    except Exception as error:  # a field may have any class, of which pydantic makes no schema
        label = registry.label(record.kind, record.name)
        message = f"{label} has settings that cannot be described, with {type(error).__name__}: {error}"
        raise PluginFailed(message) from error


def _print_record(record: PluginRecord, settings: dict[str, dict[str, Any]] | None) -> None:
    from psyche_core.text_safety import printable

    click.echo(printable(f"{record.entry_point}: {record.summary or record.cause}"))
    for label, value in (
        ("status", record.status),
        ("cause", record.cause),
        ("distribution", record.origin),
        ("module", record.module),
        ("plugin API", record.api),
    ):
        if value:
            click.echo(printable(f"  {label:<13} {value}"))
    if settings is None:
        return

    click.echo("  settings")
    for key, field in settings.items():
        default = "required" if field["required"] else f"default {field['default']!r}"
        limits = [f"{word} {value}" for word, value in field.get("bounds", {}).items()]
        limits += [f"one of {', '.join(map(str, field['choices']))}"] if "choices" in field else []
        described = f": {field['description']}" if field["description"] else ""
        click.echo(printable(f"    {key} ({default}) {', '.join([field['type'], *limits])}{described}"))
