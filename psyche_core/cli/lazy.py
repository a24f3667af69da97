"""The base of all commands: a click group that imports a command only when it is called, and examples in help texts.

The short help of each command is in the table, so that the group's own help imports none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """A group over a table `name -> ("module:attribute", short help)`."""

    def __init__(self, *args: Any, commands_by_path: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = dict(commands_by_path)

    def summary(self, name: str) -> str:
        """The short help of a command, from the table."""
        return self._table[name][1]

    def knows(self, name: str) -> bool:
        """Whether a command is in the table."""
        return name in self._table

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and options that begin so; imports no command, so a shell need not wait."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self.summary(name) if self.knows(name) else None) for name in names]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Names, sorted; imports nothing."""
        return sorted(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        """Import and return a command; None for an unknown name."""
        if cmd_name not in self._table:
            return None

        module, _, attribute = self._table[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}:{attribute} is not a click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._table[name][1]) for name in self.list_commands(ctx)])


class WholeSummaries(click.Group):
    """A group whose help breaks the short help of a command into lines, where click's own cuts it off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, each with its first sentence."""
        found = [(name, command) for name in self.list_commands(ctx) if (command := self.get_command(ctx, name)) is not None]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(limit=200)) for name, each in found if not each.hidden])


def example(*lines: str, note: str = "") -> str:
    """The end of a help text: an example, kept line by line, then a note."""
    shown = "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
    return f"{shown}\n\n{note}" if note else shown
