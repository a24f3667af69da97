"""Registers the command `psyche loss-curve`. The command's module is imported when it is called, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_core.hookspecs import CommandRegistration, hookimpl

if TYPE_CHECKING:
    import click

PSYCHE_PLUGIN_API = "1.0"


@hookimpl
def psyche_register_commands() -> list[CommandRegistration]:
    """One command."""
    return [CommandRegistration(name="loss-curve", summary="draws the loss of a run in the terminal", load=load)]


def load() -> click.Command:
    """The click command."""
    from psyche_command_loss_curve.command import command

    return command
