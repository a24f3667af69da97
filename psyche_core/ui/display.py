"""The display of one program, selected by name: `auto`, `console`, `json` or `none`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from psyche_core.telemetry.events import Event, ModelLoaded, ModelLoading
from psyche_core.telemetry.sinks import Sink, json_lines
from psyche_core.ui.console import console_lines
from psyche_core.ui.event_text import describe
from psyche_core.ui.live import LiveDisplay
from psyche_core.ui.run_metrics import RunMetrics


@contextlib.contextmanager
def open_display(logs: str, *, title: str) -> Iterator[Sink]:
    """Give a sink for the events of this process. `auto` is a live panel on a terminal, and lines elsewhere."""
    if logs == "auto":
        logs = "live" if sys.stdout.isatty() else "console"
    if logs == "live":
        with LiveDisplay(RunMetrics(run_id=title), Console()) as display:
            yield _into(display)
    elif logs == "console":
        yield console_lines(sys.stdout)
    elif logs == "json":
        yield json_lines(sys.stdout)
    else:
        yield _nothing


def _into(display: LiveDisplay) -> Sink:
    """Return a sink that updates the panel of one process, and prints above it what the process waits for."""

    def show(event: Event) -> None:
        display.metrics.handle("here", time.time(), event)
        if isinstance(event, ModelLoading | ModelLoaded):
            display.console.print(Text(describe(event)))
        display.show("here", event)

    return show


def _nothing(event: Event) -> None:
    del event
