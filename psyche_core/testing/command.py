"""Conformance of a plugin's command. A plugin's whole test is:

    class TestMyCommand(CommandConformance):
        registration = MY_REGISTRATION  # as its hook returns it
        hooks = "my_plugin.hooks"

It checks what users and documentation pages need: every command says what it does and shows an example, and help imports nothing
heavy. Testing what the commands do is up to the plugin.
"""

# ruff: noqa: D102  # the tests' names describe them

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import ClassVar

import click

from psyche_core.hookspecs import CommandRegistration
from psyche_core.testing.conformance import Conformance
from psyche_core.testing.contracts import CONTRACTS, Contract
from psyche_core.testing.sentences import shown

HEAVY = ("torch", "transformers", "numpy", "jax")


def leaves(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command, or all commands of a group and its subgroups, each with the words that call it."""
    if not isinstance(command, click.Group):
        yield path, command
        return

    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None, f"{' '.join(path)} lists {name}, but has no such command"
        yield from leaves(inner, *path, name)


class CommandConformance(Conformance):
    """Inherit and set `registration` and `hooks`."""

    contract: ClassVar[Contract] = CONTRACTS["command"]
    registration: ClassVar[CommandRegistration]
    hooks: ClassVar[str]

    def test_name_and_summary_fit_a_line_of_help(self) -> None:
        name, summary = self.registration.name, self.registration.summary
        assert name == name.strip().lower(), f"a command's name is typed, so it must have no capital letters, got {shown(name)}"
        assert " " not in name, f"a command's name must be one word, got {shown(name)}"
        assert summary.strip(), "the registration's summary is empty; say in a few words what the command does"
        assert "\n" not in summary, f"the registration's summary must be one line, got {shown(summary)}"

    def test_it_loads_a_click_command_and_the_same_again(self) -> None:
        command = self.registration.load()
        assert isinstance(command, click.Command), f"load must give a click command, got a {type(command).__name__}"
        again = self.registration.load()
        assert again is command, f"load must give the same command at each call, got another object of {type(again).__name__}"

    def test_every_command_and_option_is_explained(self) -> None:
        for path, command in leaves(self.registration.load(), "psyche", self.registration.name):
            assert command.help, f"{' '.join(path)} has no help text; write a docstring that says what it does"
            for parameter in command.params:
                told = not isinstance(parameter, click.Option) or bool(parameter.help)
                assert told, f"{' '.join(path)}: the option {parameter.name} has no help; give help= what it means"

    def test_every_command_shows_an_example_of_itself(self) -> None:
        for path, command in leaves(self.registration.load(), "psyche", self.registration.name):
            epilog = click.Context(command).command.epilog or ""
            assert " ".join(path) in epilog, f"{' '.join(path)}: its epilog must show an example of it, got {shown(epilog)}"

    def test_registering_and_loading_import_nothing_heavy(self) -> None:
        script = (
            f"import sys, {self.hooks} as hooks\n"
            f"found = [one for one in hooks.psyche_register_commands() if one.name == {self.registration.name!r}]\n"
            f"found[0].load()\nprint([name for name in {HEAVY!r} if name in sys.modules])"
        )
        done = subprocess.run(  # noqa: S603  # our own interpreter
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"another process cannot load it from {self.hooks}: {done.stderr.strip()[-500:]}"
        assert done.stdout.strip() == "[]", (
            f"registering and loading a command must import nothing heavy, got {done.stdout.strip()}; import it where it is used"
        )
