"""The display of a program by its name, the full screen included: what enters it, and what is asked by key.

A terminal that cannot show a full screen gets the console's lines, and a sentence that says why. Textual is imported by the
screen's own process only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import click

from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry.sinks import Sink
from psyche_core.tui.screen import Screen, Told
from psyche_core.tui.terminal import why_unfit

TUI = "tui"


@dataclass(frozen=True, slots=True)
class OpenDisplay:
    """A program's display. sink: takes events. follow: takes states of the coordinator; None if they are not shown. screen: the
    full screen; None for every other display.
    """

    sink: Sink
    follow: Callable[[CoordinatorState], None] | None = None
    screen: Screen | None = None


@contextlib.contextmanager
def open_program_display(logs: str, *, kind: str, title: str) -> Iterator[OpenDisplay]:
    """The display of this process, while it is entered. kind: `client` or `server`. logs: its name, see `ui.display`."""
    import sys

    from psyche_core.ui.console import console_lines
    from psyche_core.ui.display import open_display

    logs = fitting(logs)
    if logs != TUI:
        with open_display(logs, title=title) as sink:
            yield OpenDisplay(sink)
        return

    lines = console_lines(sys.stdout)
    screen = open_screen(kind, title=title, after=lambda told: lines(told.event))
    with contextlib.closing(screen):
        yield OpenDisplay(lambda event: screen.show(kind, event), screen.follow, screen)


def open_screen(kind: str, *, title: str, after: Callable[[Told], None]) -> Screen:
    """A screen that is up; `close` it at the end. Arguments as for `Screen`."""
    return Screen(kind, title=title, after=after)


def fitting(logs: str) -> str:
    """The display's name, with `console` for a full screen that cannot be shown here; then a sentence says why."""
    if logs != TUI:
        return logs

    unfit = why_unfit(os.environ)
    if unfit is None:
        return TUI
    click.echo(f"{unfit}; log lines follow instead", err=True)
    return "console"
