"""The option --disable-plugin, and what people are told about the variables that switch plugins off.

The option becomes a part of this process's environment while the command runs, so that every registry and every program that the
command starts follows it.
"""

from __future__ import annotations

import os
from collections.abc import Collection

import click

from psyche_core.errors import PluginError
from psyche_core.plugin_switches import DISABLE, ONLY, environment_notice, installed_plugins, listed, unknown_names


def switch_plugins(context: click.Context, disabled: Collection[str]) -> None:
    """Switch plugins off until the command has ended. Says on stderr what variables switch off.

    Raises PluginError for an option that names no installed plugin; a variable may name what is not installed here.
    """
    before = os.environ.get(DISABLE)
    if not (disabled or before or os.environ.get(ONLY)):
        return

    installed = installed_plugins()
    unknown = unknown_names(disabled, installed)
    if unknown:
        message = f"--disable-plugin: no plugin is named {unknown[0]}"
        raise PluginError(message)

    notice = environment_notice(os.environ, installed)
    if notice:
        click.echo(f"plugins: {notice}", err=True)
    if disabled:
        os.environ[DISABLE] = ",".join([*listed(before or ""), *disabled])
        context.call_on_close(lambda: _restore(before))


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(DISABLE, None)
    else:
        os.environ[DISABLE] = before
