"""Draws a curve in plain ASCII, which every terminal, file and mail shows. Pure: points in, lines out."""

from __future__ import annotations

from collections.abc import Sequence

LABEL = 9
"""Columns for the figures at the left, with the axis."""

Points = Sequence[tuple[int, float]]


def draw(curve: Points, marks: Points, *, width: int, height: int) -> list[str]:
    """Lines of at most `width` columns: `height` of the curve, the axis, and its steps.

    curve: (step, value), by step, at least one; a column shows the mean of its points as *. marks: the same, shown as o.
    """
    columns = width - LABEL
    first, last = curve[0][0], curve[-1][0]
    inside = [(step, value) for step, value in marks if first <= step <= last]
    by_column: dict[int, list[float]] = {}
    for step, value in curve:
        by_column.setdefault(_scaled(step, first, last, columns), []).append(value)
    stars = {column: sum(values) / len(values) for column, values in by_column.items()}
    shown = [*stars.values(), *(value for _, value in inside)]
    low, high = min(shown), max(shown)

    cells = [[" "] * columns for _ in range(height)]
    for column, value in stars.items():
        cells[height - 1 - _scaled(value, low, high, height)][column] = "*"
    for step, value in inside:
        cells[height - 1 - _scaled(value, low, high, height)][_scaled(step, first, last, columns)] = "o"

    lines = []
    for row, line in enumerate(cells):
        value = high - (high - low) * row / (height - 1)
        label = f"{value:{LABEL - 2}.3f}" if row in (0, height // 2, height - 1) else " " * (LABEL - 2)
        lines.append(f"{label} |{''.join(line)}".rstrip())
    left, right = str(first), str(last) if last > first else ""
    ends = f"{left}{right:>{columns - len(left)}}"
    return [*lines, f"{' ' * (LABEL - 1)}+{'-' * columns}", f"{' ' * LABEL}{ends}".rstrip()]


def _scaled(value: float, low: float, high: float, count: int) -> int:
    """Which of `count` places from low to high a value has."""
    return round((value - low) / (high - low) * (count - 1)) if high > low else 0
