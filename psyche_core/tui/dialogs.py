"""Questions before actions that cannot be undone, and the page of keys."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static


class Question(ModalScreen[bool]):
    """A question that the user answers with y or n."""

    BINDINGS = [  # noqa: RUF012  # textual's own declaration is a class variable
        Binding("y,enter", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]

    def __init__(self, question: str, *, more: str = "") -> None:
        super().__init__()
        self._question = question
        self._more = more

    def compose(self) -> ComposeResult:
        """Make the question, its consequences, and the keys."""
        with Vertical(classes="box"):
            yield Static(Text(self._question, style="bold"))
            if self._more:
                yield Static(Text(self._more))
            yield Static(Text.assemble("\n", ("y", "bold"), " yes    ", ("n", "bold"), " no"))

    def action_answer(self, answer: bool) -> None:
        """Close with the answer."""
        self.dismiss(answer)


class Keys(ModalScreen[None]):
    """The page of all keys, with notes about the columns."""

    BINDINGS = [Binding("escape,q,question_mark,enter", "close", "Close")]  # noqa: RUF012  # as above

    def __init__(self, keys: Sequence[tuple[str, str]], *, notes: str) -> None:
        super().__init__()
        self._rows = keys
        self._notes = notes

    def compose(self) -> ComposeResult:
        """Make a table of keys, and notes."""
        table = Table.grid(padding=(0, 3))
        for key, meaning in self._rows:
            table.add_row(Text(key, style="bold"), Text(meaning))
        with VerticalScroll(classes="box wide"):
            yield Static(Text("Keys", style="bold"))
            yield Static(table)
            yield Static(Text(f"\n{self._notes}"))
            yield Static(Text("\nEsc closes this page", style="dim"))

    def action_close(self) -> None:
        """Close the page."""
        self.dismiss()
