"""The metrics port of a command: `--metrics-local-port`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from psyche_core.telemetry.sinks import Sink


@contextmanager
def metrics_sinks(port: int | None) -> Iterator[list[Sink]]:
    """Serve the figures of this program while inside, and say where; gives the sinks that collect them.

    port: 0 picks a free one; None serves nothing. Raises UserError if the port cannot be used.
    """
    if port is None:
        yield []
        return

    from psyche_core.exporters.metrics_server import HOST, ProgramFigures, serving_figures

    figures = ProgramFigures()
    with serving_figures(figures, port) as bound:
        click.echo(f"figures for Prometheus are at http://{HOST}:{bound}/metrics", err=True)
        yield [figures]
