"""Commands as pages show them, parsed as the program would."""

from __future__ import annotations

import click

from psyche_core.cli import cli


def parse(words: list[str]) -> dict[str, object]:
    """Parse a psyche command as the program would, without running it; the leaf's parameters."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and not (command.invoke_without_command and words[0].startswith("-")):
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]}"
        command, words = found, words[1:]
    return command.make_context("psyche", list(words)).params
