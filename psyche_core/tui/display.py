"""The screen of a program that has a `Display`, such as a testnet. When the screen is closed, lines are written instead."""

from __future__ import annotations

from typing import Self

from rich.console import Console

from psyche_core.telemetry.events import Event
from psyche_core.tui.screen import Screen, Told
from psyche_core.ui.live import Display, LineDisplay
from psyche_core.ui.run_metrics import RunMetrics


class ScreenDisplay(Display):
    """Shows all members of a run on a screen. kind: as for `Screen`. Raises OSError if no screen can be started."""

    def __init__(self, metrics: RunMetrics, console: Console, *, kind: str) -> None:
        super().__init__(metrics, console)
        self._lines = LineDisplay(metrics, console)
        self._kind = kind
        self._screen: Screen | None = None

    def __enter__(self) -> Self:
        self._screen = Screen(self._kind, title=self.metrics.run_id, after=self._after)
        return self

    def __exit__(self, *_: object) -> None:
        if self._screen is not None:
            self._screen.close()

    def show(self, source: str, event: Event | None = None) -> None:
        """Pass the event on to the screen. Once the screen is closed, write lines; also without an event, when they are due."""
        if event is not None and self._screen is not None:
            self._screen.show(source, event)
        elif self._screen is None or not self._screen.up:
            self._lines.show(source)

    def _after(self, told: Told) -> None:
        self._lines.show(told.source, told.event)
