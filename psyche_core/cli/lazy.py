"""The base of all commands: a click group that imports a command only when it is called, and examples in help texts.

The short help of each command is in the table, under the heading of its section: the group's own help imports none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from psyche_core.option_groups import command_sections, write_sections

Table = Mapping[str, Mapping[str, tuple[str, str]]]
"""Heading of a section -> name of a command -> ("module:attribute", short help)."""


class LazyGroup(click.Group):
    """A group over a table of commands.

    Attributes:
        sections: heading -> names.
    """

    def __init__(self, *args: Any, commands_by_path: Table, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = {name: entry for section in commands_by_path.values() for name, entry in section.items()}
        self.sections: dict[str, tuple[str, ...]] = {heading: tuple(section) for heading, section in commands_by_path.items()}

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
        """Write the commands of the table, one list for each heading."""
        found = command_sections(self, self.list_commands(ctx))
        write_sections(formatter, ((heading, [(name, self.summary(name)) for name in names]) for heading, names in found))


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
