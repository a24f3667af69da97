"""The screen: tabs that show a run, keys, and questions before actions that cannot be undone.

It takes lines from a queue and sends requests through a function; it opens nothing itself. The run continues if the screen is
closed or fails.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable
from pathlib import PurePath
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Input, Static, TabbedContent, TabPane

from psyche_core.observer.member_view import MemberView
from psyche_core.tui.dialogs import Keys, Question
from psyche_core.tui.lines import EndLine, FeedLine, Request
from psyche_core.tui.panes import facts
from psyche_core.tui.panes.coordinator_pane import CoordinatorPane
from psyche_core.tui.panes.log_pane import LogPane
from psyche_core.tui.panes.members_pane import MembersPane
from psyche_core.tui.panes.network_pane import NetworkPane
from psyche_core.tui.panes.pane import Pane, Table
from psyche_core.tui.panes.rewards_pane import RewardsPane
from psyche_core.tui.panes.run_pane import RunPane
from psyche_core.tui.watched import Watched
from psyche_core.ui.formatting import duration_text

REFRESH_SECONDS = 0.25
WORK_SECONDS = 0.1
"""Longest time for which lines are taken in before keys are handled."""

TABS: dict[str, tuple[str, ...]] = {
    "client": ("Run", "Coordinator", "Network", "Rewards", "Log"),
    "server": ("Run", "Members", "Coordinator", "Rewards", "Log"),
    "testnet": ("Run", "Members", "Network", "Rewards", "Log"),
    "replay": ("Run", "Members", "Network", "Rewards", "Log"),
}
"""The tabs for each kind of program."""

_PANES: dict[str, type[Pane]] = {
    "Run": RunPane,
    "Members": MembersPane,
    "Coordinator": CoordinatorPane,
    "Network": NetworkPane,
    "Rewards": RewardsPane,
    "Log": LogPane,
}
_INTERRUPT = {
    "client": "leaving the run: what it has is saved first; Ctrl+C again ends it at once",
    "server": "stopping the server",
    "testnet": "stopping all programs of the testnet",
    "replay": "stopping",
}
_NO_COLOR_THEMES = ("ansi-dark", "textual-ansi")
"""The theme that uses the terminal's own colours; its names in newer and older versions of textual."""

_NOTES = (
    "The run goes on whatever happens to this screen. Figures of other members are their own words, which nobody has checked. "
    "`seen by` counts the witnesses that saw a member's result; a quorum of them accepts it."
)


class RunScreen(App[None]):
    """The screen of one program.

    kind: a key of TABS. feed: lines of the program, which only this app takes. ask: passes a request to the program. clock:
    returns the present time in unix seconds; a replay shows the time of its newest event instead.
    """

    ENABLE_COMMAND_PALETTE: ClassVar[bool] = False
    CSS_PATH: ClassVar[str | PurePath | list[str | PurePath] | None] = "screen.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "tab(1)", "Tabs", key_display="1-5"),
        Binding("ctrl+p", "pause", "Pause/resume", key_display="^p", priority=True),
        Binding("x", "expel", "Expel"),
        Binding("u", "update", "Update"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("l", "level", "Level"),
        Binding("q,ctrl+q", "leave", "Close", key_display="q"),
        Binding("ctrl+c", "interrupt", "Stop", key_display="^c", priority=True),
        Binding("question_mark", "keys", "Help", key_display="?"),
        Binding("escape", "out", show=False),
        *(Binding(str(number), f"tab({number})", show=False) for number in range(2, 6)),
    ]

    def __init__(
        self,
        kind: str,
        *,
        title: str,
        feed: queue.Queue[FeedLine],
        ask: Callable[[Request], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(ansi_color=True if os.environ.get("NO_COLOR") is not None else None)  # otherwise grey tones remain
        self.kind = kind
        self.watched: Watched = Watched(title=title, of_member=kind == "client")
        self._feed = feed
        self._ask = ask
        self._clock = clock
        self._over = False
        self._drawn: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        """Make a line about the run, the tabs, and the line of keys."""
        yield Static(id="headline")
        with TabbedContent(id="tabs"):
            for number, name in enumerate(TABS[self.kind], 1):
                with TabPane(f"{number} {name}", id=name.lower()):
                    yield _PANES[name]()
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Start to take lines in."""
        self.theme = next(name for name in _NO_COLOR_THEMES if name in self.available_themes) if self.no_color else "textual-dark"
        self.set_interval(REFRESH_SECONDS, self.take)
        self.take()

    def on_resize(self) -> None:
        """Draw again for another size."""
        self._drawn = ()
        self.call_after_refresh(self.draw)

    def on_tabbed_content_tab_activated(self) -> None:
        """Draw the tab that is visible now."""
        self._drawn = ()
        self.refresh_bindings()
        self.call_after_refresh(self.draw)

    @property
    def now(self) -> float:
        """The time of the run, in unix seconds."""
        return self.watched.view.newest if self.kind == "replay" else self._clock()

    @property
    def pane(self) -> Pane:
        """The pane of the visible tab."""
        return self.query_one(TabbedContent).get_pane(self.query_one(TabbedContent).active).query_one(Pane)

    def take(self) -> None:
        """Take in the program's lines, and draw them."""
        end = time.monotonic() + WORK_SECONDS
        while time.monotonic() < end:
            try:
                line = self._feed.get_nowait()
            except queue.Empty:
                break
            if isinstance(line, EndLine):
                if not line.stays:
                    self.exit()
                    return
                self._over = True
                self._drawn = ()
            else:
                self.watched.enter(line)
        self.draw()

    def draw(self) -> None:
        """Draw the headline and the visible tab, if anything changed or another second has passed."""
        tabs = self.query_one(TabbedContent)
        log = self.query_one(LogPane)
        what = (self.watched.changed, int(self.now), tabs.active, log.level, self.query_one("#filter", Input).value)
        if what != self._drawn and tabs.active:
            self._drawn = what
            self.query_one("#headline", Static).update(headline(self.watched, self.kind, self.now, over=self._over))
            self.pane.show(self.watched, self.now)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether a key is available: it depends on the program and on the visible tab."""
        del parameters
        if action in ("pause", "update"):
            return self.kind == "server"
        active = next((tabs.active for tabs in self.query(TabbedContent)), "")
        if action == "expel":
            return self.kind == "server" and active == "members"
        if action in ("filter", "level"):
            return active == "log"
        return True

    # ---- keys

    def action_tab(self, number: int) -> None:
        """Go to a tab by its number."""
        names = TABS[self.kind]
        if number <= len(names):
            self.query_one(TabbedContent).active = names[number - 1].lower()
            table = self.pane.query(Table)
            self.set_focus(table.first() if table else None)

    def action_keys(self) -> None:
        """Show all keys."""
        shown = [
            ("1 … 5", f"tabs: {', '.join(TABS[self.kind])}"),
            ("↑ ↓ PgUp PgDn Home End", "scroll, or go to another row"),
            ("/  Esc", "in the log: words that a line must have; leave the field"),
            ("l", "in the log: all lines, warnings, errors only"),
        ]
        if self.kind == "server":
            shown += [
                ("Ctrl+P", "pause the run, or continue a paused one"),
                ("x", "in the tab Members: expel the member under the cursor (asks first)"),
                ("u", "give a paused run the configuration that is in its run file now (asks first)"),
            ]
        shown += [("q", self._close_means()), ("Ctrl+C", _INTERRUPT[self.kind])]
        self.push_screen(Keys(shown, notes=_NOTES))

    def _close_means(self) -> str:
        return "end the replay" if self.kind == "replay" else "close this screen (asks first); the run goes on with log lines"

    def action_leave(self) -> None:
        """Close the screen; the run continues."""
        if self.kind == "replay":
            self._leave(True)
        else:
            more = "The run goes on, with log lines here. Ctrl+C stops it."
            self.push_screen(Question("Close this screen?", more=more), self._leave)

    def _leave(self, sure: bool | None) -> None:
        if sure:
            self._ask(Request("leave"))
            self.exit()

    def action_interrupt(self) -> None:
        """Do what Ctrl+C does without a screen."""
        self._ask(Request("interrupt"))
        self.notify(_INTERRUPT[self.kind], severity="warning", markup=False)

    def action_pause(self) -> None:
        """Pause the run, or continue it."""
        self._ask(Request("pause"))
        paused = facts.phase_name(self.watched) == "Paused"
        self.notify("asked to continue the run" if paused else "asked to pause the run; results that are due are applied first")

    def action_update(self) -> None:
        """Give the run the configuration of its run file."""

        def answer(sure: bool | None) -> None:
            if sure:
                self._ask(Request("update"))

        more = "The run takes [config] and [model] from its run file as it is now. This is possible only while the run is paused."
        self.push_screen(Question("Update the run's configuration?", more=more), answer)

    def action_expel(self) -> None:
        """Remove the member under the cursor from the run."""
        pane = self.pane
        member = self.watched.view.roster.members.get(pane.chosen or "") if isinstance(pane, MembersPane) else None
        if member is None or not member.id:
            self.notify("no member is chosen", severity="warning")
            return

        self.push_screen(
            Question(
                f"Expel {facts.label(member)} from the run?",
                more="Its connection is closed, and its key is refused until this server is started again. To refuse it for "
                "longer, take it out of the list of --allow-list.",
            ),
            lambda sure: self._expel(member) if sure else None,
        )

    def _expel(self, member: MemberView) -> None:
        self._ask(Request("expel", member.id))

    def action_filter(self) -> None:
        """Move to the filter of the log."""
        self.query_one("#filter", Input).focus()

    def action_level(self) -> None:
        """Go to the next level of the log, which shows fewer lines."""
        self.query_one(LogPane).next_level()
        self.draw()

    def action_out(self) -> None:
        """Leave the filter of the log."""
        self.set_focus(None)

    def on_input_submitted(self) -> None:
        """Leave the filter of the log when Enter is pressed."""
        self.set_focus(None)


def headline(watched: Watched, kind: str, now: float, *, over: bool = False) -> Text:
    """Return the run in one line."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f" psyche {kind} ", style="reverse bold").append(f" {watched.run_id}", style="bold")
    phase = watched.view.phase
    if watched.view.differ:
        text.append("  REPLICAS DIFFER", style="bold red")
    if over:
        text.append("  the run is over; q closes this screen", style="bold yellow")
    elif phase is not None:
        passed, _ = facts.phase_clock(watched, now)
        text.append(f"  {facts.phase_name(watched)} ", style="bold green").append(duration_text(passed))
        text.append(f"  epoch {phase.epoch}  step {facts.steps_text(watched)}")
    return text
