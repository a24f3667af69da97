"""`psyche sidecar`: ranks of a client whose model is divided among several machines, see `psyche_core.training.sidecar`."""

from __future__ import annotations

import click


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": True},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def sidecar(words: tuple[str, ...]) -> int:
    """Compute a part of a client's model on another machine. All options are those of the program itself."""
    from psyche_core.training.sidecar import main

    return main(words)
