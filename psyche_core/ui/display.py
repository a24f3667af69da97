"""The display of one program, selected by name: `auto`, `console`, `json` or `none`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from psyche_core.telemetry.events import CheckpointSaved, CheckpointStored, Ended, Event, ModelLoaded, ModelLoading, Started
from psyche_core.telemetry.sinks import Sink, json_lines
from psyche_core.ui.console import console_lines
from psyche_core.ui.event_text import describe
from psyche_core.ui.live import LiveDisplay
from psyche_core.ui.run_metrics import RunMetrics


@contextlib.contextmanager
def open_display(logs: str, *, title: str) -> Iterator[Sink]:
    """Give a sink for the events of this process. `auto` is a live panel on a terminal, and lines elsewhere.

    The sentences with which the process ends stand below the panel, as they are the last lines elsewhere.
    """
    if logs == "auto":
        logs = "live" if sys.stdout.isatty() else "console"
    if logs == "live":
        console, last = Console(), LastWords()
        try:
            with LiveDisplay(RunMetrics(run_id=title, of_member=True), console) as display:
                yield _into(display, last)
        finally:
            for sentence in last.sentences():
                console.print(Text(sentence), soft_wrap=True)
    elif logs == "console":
        yield console_lines(sys.stdout)
    elif logs == "json":
        yield json_lines(sys.stdout)
    else:
        yield _nothing


class LastWords:
    """Keeps what a process says when it ends: where its model is, and why it ended."""

    def __init__(self) -> None:
        self._kept: dict[type[Event], Event] = {}

    def note(self, event: Event) -> None:
        """Keep the event if it is one of these, in place of an earlier one. A client that starts over has not ended."""
        if isinstance(event, Started):
            self._kept.pop(Ended, None)
        elif isinstance(event, CheckpointSaved | CheckpointStored | Ended):
            self._kept.pop(type(event), None)
            self._kept[type(event)] = event

    def sentences(self) -> list[str]:
        """Return them as lines, in the order in which they came."""
        return [describe(event) for event in self._kept.values()]


def _into(display: LiveDisplay, last: LastWords) -> Sink:
    """Return a sink that updates the panel of one process, and prints above it what the process waits for."""

    def show(event: Event) -> None:
        last.note(event)
        display.metrics.handle("here", time.time(), event)
        if isinstance(event, ModelLoading | ModelLoaded):
            display.console.print(Text(describe(event)))
        display.show("here", event)

    return show


def _nothing(event: Event) -> None:
    del event
