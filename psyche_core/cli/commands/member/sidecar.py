"""`psyche sidecar`: ranks of a client whose model is divided among several machines, see `psyche_core.training.sidecar`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import click


class _Sidecar(click.Command):
    """Its options are read by the program, which also starts without click; only manual pages ask here for them."""

    def option_sections(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Heading, and names and text of each option, as the program's own help has them."""
        from psyche_core.training.sidecar import parser

        for group in parser()._action_groups:
            rows = [(_names(each), each.help or "") for each in group._group_actions if each.help != argparse.SUPPRESS]
            if rows:
                yield (group.title or "").capitalize(), rows


def _names(action: argparse.Action) -> str:
    """`--port N`."""
    value = "|".join(map(str, action.choices)) if action.choices else action.metavar or action.dest.upper()
    return ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {value}")


@click.command(
    cls=_Sidecar,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": True},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def sidecar(words: tuple[str, ...]) -> int:
    """Compute a part of a client's model on another machine. All options are those of the program itself."""
    from psyche_core.training.sidecar import main

    return main(words)
