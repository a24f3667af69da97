"""The loss curve in characters of a terminal: braille dots, with marks for the validation losses. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rich.text import Text

LABEL = 8
"""Columns for the numbers beside the curve."""

MARK = "◆"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character by row and column."""

Points = Sequence[tuple[int, float]]


def loss_chart(curve: Points, marks: Points, *, width: int, height: int) -> Text:
    """Return the curve in `height` lines of `width` columns, including its axis.

    curve, marks: (step, nats per token), by step; marks are drawn as ◆.
    """
    columns, rows = width - LABEL, height - 2
    if not curve or columns < 8 or rows < 2:
        return Text("the loss is drawn here once the first step is trained", style="dim")

    values = [value for _, value in (*curve, *marks)]
    low, high = min(values), max(values)
    if high - low < 1e-6:
        low, high = low - 0.5, high + 0.5
    first, last = curve[0][0], max(curve[-1][0], curve[0][0] + 1)

    def row_of(value: float, count: int) -> int:
        return min(count - 1, max(0, round((high - value) / (high - low) * (count - 1))))

    cells = [[0] * columns for _ in range(rows)]
    for x, begin, end in _spans([(step, row_of(value, rows * 4)) for step, value in curve], first, last, columns * 2):
        for y in range(begin, end + 1):
            cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    marked = {
        (row_of(value, rows), min(columns - 1, (step - first) * (columns - 1) // (last - first))): MARK
        for step, value in marks
        if first <= step <= last
    }
    text = Text(no_wrap=True)
    for row in range(rows):
        label = f"{high - (high - low) * row / (rows - 1):7.3f} " if row in (0, rows // 2, rows - 1) else " " * LABEL
        text.append(label, style="dim")
        for column, bits in enumerate(cells[row]):
            if (row, column) in marked:
                text.append(MARK, style="bold yellow")
            else:
                text.append(chr(0x2800 + bits) if bits else " ", style="cyan")
        text.append("\n")
    left, right = f"step {first}", f"{last}"
    text.append(f"{' ' * (LABEL - 1)}└{'─' * columns}\n", style="dim")
    text.append(f"{' ' * LABEL}{left}{right:>{columns - len(left)}}", style="dim")
    return text


def _spans(points: Points, first: int, last: int, columns: int) -> list[tuple[int, int, int]]:
    """Return (column, top row, bottom row) of the dots in each column, so that the curve has no gaps."""
    by_column: dict[int, list[float]] = {}
    for step, row in points:
        by_column.setdefault((step - first) * (columns - 1) // (last - first), []).append(row)
    means = [(column, sum(rows) / len(rows)) for column, rows in sorted(by_column.items())]
    line = dict(means)
    for (left, before), (right, after) in itertools.pairwise(means):
        line |= {column: before + (after - before) * (column - left) / (right - left) for column in range(left + 1, right)}
    spans = []
    for column, row in sorted(line.items()):
        halves = [(row + line[near]) / 2 for near in (column - 1, column + 1) if near in line]  # half way to its neighbours
        spans.append((column, round(min(row, *halves)), round(max(row, *halves))) if halves else (column, round(row), round(row)))
    return spans
