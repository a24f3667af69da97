"""Commands that plugins provide: `psyche NAME` for every entry point `command.NAME`.

The list of names is read from entry points, which imports nothing; a command is loaded when it is called. Built-in commands come
first: a plugin cannot replace one of them. A broken plugin is reported, in one sentence, only to the user who calls its command.
"""

from __future__ import annotations

import os
from typing import Any

import click

from psyche_core.cli.lazy import LazyGroup, Table
from psyche_core.cli.plugin_marks import KIND, marked_commands
from psyche_core.option_groups import command_sections, write_sections
from psyche_core.plugin_switches import PluginSwitches, installed_plugins


def plugin_commands() -> dict[str, str]:
    """Names of the commands that installed plugins provide, with the name of their distribution; none that is switched off."""
    switches = PluginSwitches.of(os.environ)
    return {
        plugin.entry_point.removeprefix(KIND): plugin.distribution
        for plugin in installed_plugins()
        if plugin.entry_point.startswith(KIND) and not switches.why_off(plugin)
    }


class PluginGroup(LazyGroup):
    """A group of the commands in a table and of those that plugins provide."""

    other_commands = "Commands of plugins"
    """Heading of the commands that are not in the table."""

    def __init__(self, *args: Any, commands_by_path: Table, **kwargs: Any) -> None:
        super().__init__(*args, commands_by_path=commands_by_path, **kwargs)
        self.own: tuple[str, ...] = tuple(sorted(name for section in commands_by_path.values() for name in section))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Our names, then the plugins', each sorted; imports nothing."""
        own = super().list_commands(ctx)
        return [*own, *sorted(set(plugin_commands()) - set(own))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, None for an unknown name. Raises PluginError for a command that cannot be used.

        The command refuses empty paths, whoever wrote it.
        """
        command = self._imported(ctx, cmd_name)
        if command is not None:
            from psyche_core.cli.path_options import refuse_empty_paths  # not earlier: importing pydantic is slow

            refuse_empty_paths(command)
        return command

    def _imported(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.own:
            return super().get_command(ctx, cmd_name)
        if cmd_name.rpartition(":")[2] not in plugin_commands():  # `distribution:name` settles a clash
            return None

        from psyche_core.errors import PluginError
        from psyche_core.plugins import PluginRegistry

        command: object = PluginRegistry.discover().load("command", cmd_name).load()  # foreign code
        if not isinstance(command, click.Command):
            message = f"the plugin command.{cmd_name} provides a {type(command).__name__}, expected a click command"
            raise PluginError(message)

        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's method, with a hint if an unknown name is a command that the plugin directory knows."""
        if args and not args[0].startswith("-") and args[0] not in self.own and args[0] not in plugin_commands():
            from psyche_core.plugins.directory import entry_of  # not earlier: importing pydantic is slow

            entry = entry_of("command", args[0])
            if entry is not None:
                ctx.fail(f"{args[0]} is not installed; {entry.remedy}")
            from psyche_core.config.sentences import did_you_mean

            if ":" not in args[0]:  # `distribution:name` settles a clash
                ctx.fail(f"No such command {args[0]!r}{did_you_mean(args[0], (*self.own, *plugin_commands()))}")

        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write our commands from the table, and the plugins' names; those that cannot be used are marked."""
        disabled: tuple[str, ...] = ctx.params.get("disabled", ())
        said = marked_commands(disabled) | {name: self.summary(name) for name in self.own}
        found = command_sections(self, said)
        write_sections(formatter, ((heading, [(name, said[name]) for name in names]) for heading, names in found))
