"""`psyche plugins`: what is installed, from where, and what is broken and why."""

from __future__ import annotations

import json
import sys

import click

from psyche_core.cli.lazy import example
from psyche_core.hookspecs import KINDS

WIDTH_OF_FILES = 200
"""Line width if the output is not a terminal. It keeps a plugin on one line, for grep."""


@click.group(context_settings={"max_content_width": 110})
def plugins() -> None:
    """List the installed plugins, and say which are broken and why."""


@plugins.command("list", epilog=example("psyche plugins list --kind optimizer"))
@click.option("--json", "as_json", is_flag=True, help="One JSON array, for programs.")
@click.option("--kind", type=click.Choice(KINDS), help="Only plugins of this kind.")
def list_plugins(as_json: bool, kind: str | None) -> None:
    """List every plugin: kind, name, distribution, version, status and summary, or why it is broken."""
    from dataclasses import asdict

    from psyche_core.plugins import PluginRegistry
    from psyche_core.text_safety import printable

    records = [record for record in PluginRegistry.discover().inspect_all() if kind in (None, record.kind)]
    if as_json:
        click.echo(json.dumps([asdict(record) for record in records], indent=2))
        return

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("kind", "name", "distribution", "version", "status", "summary"):
        table.add_column(column, overflow="fold", no_wrap=column != "summary")
    for record in records:
        status = Text(record.status, style="green" if record.status == "ok" else "red")
        words = (record.name, record.distribution, record.version)
        text = Text(printable(record.cause or record.summary))
        table.add_row(record.kind, *(Text(printable(word)) for word in words), status, text)
    Console(width=None if sys.stdout.isatty() else WIDTH_OF_FILES).print(table)


@plugins.command("show", epilog=example("psyche plugins show optimizer.Distro"))
@click.argument("name")
def show_plugin(name: str) -> None:
    """Show everything that is known about a plugin. NAME is `Name` or `kind.Name`."""
    from psyche_core.config.sentences import did_you_mean
    from psyche_core.errors import PluginError
    from psyche_core.plugins import PluginRegistry
    from psyche_core.text_safety import printable

    registry = PluginRegistry.discover()
    found = [record for record in registry.inspect_all() if name in (record.name, record.entry_point)]
    if not found:
        message = f"no plugin is named {name}{did_you_mean(name, {record.name for record in registry.list()})}"
        raise PluginError(message)

    for record in found:
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
        if record.status == "ok":
            registration = registry.load(record.kind, record.name)
            settings = getattr(registration, "settings", None)
            if settings is not None:
                click.echo("  settings")
                for key, field in settings.model_fields.items():
                    default = "required" if field.is_required() else f"default {field.get_default(call_default_factory=True)!r}"
                    click.echo(f"    {key} ({default})")
