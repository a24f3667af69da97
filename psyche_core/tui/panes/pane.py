"""The base class of all tabs, and a table that keeps its cursor and scroll position when it is filled again."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import DataTable

from psyche_core.tui.watched import Watched

Row = tuple[str, Sequence[str | Text]]
"""A row's key, and its cells."""


class Pane(VerticalScroll):
    """A tab's content."""

    def show(self, watched: Watched, now: float) -> None:
        """Show the present content. now: unix seconds of the run."""
        raise NotImplementedError


class Table(DataTable[Text]):
    """A table with a cursor of rows.

    fill: replaces the content, and keeps cursor and scroll where they are if the rows are the same.
    """

    def __init__(self, *, id: str) -> None:  # noqa: A002  # textual's word
        super().__init__(id=id, cursor_type="row", zebra_stripes=False, cell_padding=1)
        self._keys: list[str] = []
        self._columns: tuple[str, ...] = ()

    def fill(self, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Show rows under columns. A column that begins with `>` has its cells on the right."""
        names = tuple(columns)
        if names != self._columns:
            self.clear(columns=True)
            self._keys = []
            self._columns = names
            for name in names:
                right = name.startswith(">")
                self.add_column(Text(name.removeprefix(">"), justify="right" if right else "left"), key=name)
        keys = [key for key, _ in rows]
        if keys != self._keys:
            at = self.cursor_key
            self.clear()
            self._fit(rows)
            for key, cells in rows:
                self.add_row(*self._cells(cells), key=key)
            self._keys = keys
            if at in keys:
                self.move_cursor(row=keys.index(at))
            return

        self._fit(rows)
        for key, cells in rows:
            for name, cell in zip(names, self._cells(cells), strict=True):
                if self.get_cell(key, name) != cell:
                    self.update_cell(key, name, cell, update_width=True)

    def _fit(self, rows: Sequence[Row]) -> None:
        """Make columns as wide as their cells at once.

        textual does so only when it is idle. A row that was drawn before keeps its cut-off cells until it changes.
        """
        for number, column in enumerate(self.ordered_columns):
            cells = [column.label, *(Text.assemble(cells[number]) for _, cells in rows)]
            column.content_width = max(cell.cell_len for cell in cells)

    @property
    def cursor_key(self) -> str | None:
        """The key of the row under the cursor; None in an empty table."""
        return self._keys[self.cursor_row] if 0 <= self.cursor_row < len(self._keys) else None

    def _cells(self, cells: Sequence[str | Text]) -> list[Text]:
        made = []
        for name, cell in zip(self._columns, cells, strict=True):
            text = cell.copy() if isinstance(cell, Text) else Text(cell)
            text.justify = "right" if name.startswith(">") else "left"
            made.append(text)
        return made
