"""The tab Log: every event as a line, with a filter and a level."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input, RichLog, Static

from psyche_core.tui.panes import facts
from psyche_core.tui.panes.pane import Pane
from psyche_core.tui.watched import LEVELS, LogLine, Watched

_STYLES = {"info": "", "warning": "yellow", "error": "bold red"}
_SHOWN = {"info": "all lines", "warning": "warnings and errors", "error": "errors only"}


class LogPane(Pane):
    """Log lines, the newest at the bottom. It scrolls to the newest line unless the user scrolled up."""

    def __init__(self) -> None:
        super().__init__()
        self.level: str = "info"
        self._shown = 0
        self._wanted: tuple[str, str] = ("", "info")

    def compose(self) -> ComposeResult:
        """Make the filter, the level, and the lines."""
        with Horizontal(id="log-tools"):
            yield Input(placeholder="only lines with these words (/)", id="filter", compact=True, select_on_focus=False)
            yield Static(id="log-level")
        yield RichLog(id="lines", max_lines=5000, wrap=True, auto_scroll=True, min_width=20)

    def next_level(self) -> None:
        """Show fewer lines; after the level with the fewest, show all again."""
        self.level = LEVELS[(LEVELS.index(self.level) + 1) % len(LEVELS)]

    def show(self, watched: Watched, now: float) -> None:
        """Add the newest lines. Write all lines again after a change of filter or level."""
        del now
        lines = self.query_one("#lines", RichLog)
        if not lines.size.width:
            return  # not visible yet, so its width for breaking lines is unknown

        wanted = (self.query_one("#filter", Input).value.casefold(), self.level)
        if wanted != self._wanted:
            self._wanted, self._shown = wanted, 0
            lines.clear()
        self.query_one("#log-level", Static).update(Text(_SHOWN[self.level], style="bold" if self.level != "info" else "dim"))
        bottom = lines.scroll_offset.y >= lines.max_scroll_y
        for line in watched.log:
            if line.number > self._shown and matches(line, words=wanted[0], level=wanted[1]):
                lines.write(log_text(line), scroll_end=bottom)
        self._shown = watched.lines


def matches(line: LogLine, *, words: str, level: str) -> bool:
    """Return whether a line contains all the words (in lower case) and has at least this level."""
    text = f"{line.source} {line.text}".casefold()
    return LEVELS.index(line.level) >= LEVELS.index(level) and all(word in text for word in words.split())


def log_text(line: LogLine) -> Text:
    """Return a line with its time and source, in the colour of its level."""
    source = f"{line.source}: " if line.source else ""
    return Text.assemble((f"{facts.clock(line.time)} ", "dim"), (source, "bold"), (line.text, _STYLES[line.level]))
