"""Commands as pages show them, parsed as the program would."""

from __future__ import annotations

from functools import cache

import click

from psyche_core.cli import cli
from psyche_core.training import sidecar


def parse(words: list[str]) -> dict[str, object]:
    """Parse a psyche command as the program would, without running it; the leaf's parameters."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and not (command.invoke_without_command and (words or ["-"])[0].startswith("-")):
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]}"
        command, words = found, words[1:]
    return command.make_context("psyche", list(words)).params


def known(words: list[str]) -> tuple[str, set[str]]:
    """The leaf that words name, as far as they name commands, and the options that it takes.

    A program's options are those of its backend, too, where the words name one; a missing argument is no mistake here.
    """
    command: click.Command = cli
    path = ["psyche"]
    context = click.Context(cli, info_name="psyche", resilient_parsing=True)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {' '.join([*path, words[0]])}"
        path, command, words = [*path, words[0]], found, words[1:]
        context = click.Context(command, info_name=path[-1], parent=context, resilient_parsing=True)
    named = [part for word in words for part in word.split("=")[:2]]
    if {"--backend", "--tracker"} & {*named} or path == ["psyche", "client", "train"]:  # plugins bring further options
        leaf = command.make_context(path[-1], list(words), parent=context.parent, resilient_parsing=True)
        return " ".join(path), options_of(command, leaf)
    return " ".join(path), options_of(command, context)


def options_of(command: click.Command, context: click.Context) -> set[str]:
    """Every spelling of the options that a command takes."""
    if command.name == "sidecar":  # passes all of them on to a program of its own
        return set(sidecar.parser()._option_string_actions)
    return {word for each in command.get_params(context) for word in (*each.opts, *each.secondary_opts) if word.startswith("-")}


@cache
def all_options() -> set[str]:
    """Of all commands, those that backends bring included."""
    found: set[str] = set()
    rest: list[tuple[click.Command, click.Context]] = [(cli, click.Context(cli, resilient_parsing=True))]
    while rest:
        command, context = rest.pop()
        found |= options_of(command, context)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                rest.append((below, click.Context(below, parent=context, resilient_parsing=True)))
    further = (["--backend", "solana"], ["--tracker", "wandb,tensorboard,mlflow"], [])
    return found.union(*(known(["client", "train", *words])[1] for words in further))
