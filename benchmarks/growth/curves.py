"""Costs at several sizes, and the exponent with which each grows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COLUMNS = 7
"""Most sizes of a table."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One cost at several sizes.

    title: what is measured, where. unit: of the cost. over: what grows. points: pairs of size and cost, ascending, all above 0.
    """

    title: str
    unit: str
    over: str
    points: tuple[tuple[float, float], ...]

    @property
    def exponent(self) -> float:
        """Least-squares slope of log cost over log size: 0 is constant, 1 proportional, 2 quadratic. NaN below two sizes."""
        xs, ys = ([math.log(point[axis]) for point in self.points] for axis in (0, 1))
        middle = sum(xs) / len(xs) if xs else 0.0
        spread = sum((x - middle) ** 2 for x in xs)
        return sum((x - middle) * y for x, y in zip(xs, ys, strict=True)) / spread if spread else math.nan

    @property
    def last_exponent(self) -> float:
        """The same from the last two sizes alone: what a fixed cost at small sizes does not flatten."""
        return Curve(self.title, self.unit, self.over, self.points[-2:]).exponent

    def as_table(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "title": self.title,
            "unit": self.unit,
            "over": self.over,
            "points": [list(point) for point in self.points],
            "exponent": _rounded(self.exponent),
            "last_exponent": _rounded(self.last_exponent),
        }


def curve(title: str, unit: str, over: str, points: Iterable[tuple[float, float]]) -> Curve:
    """A curve of those points whose cost is above 0, ascending."""
    return Curve(title, unit, over, tuple(sorted(point for point in points if point[1] > 0)))


def table(curves: Sequence[Curve]) -> str:
    """A table for each thing that grows: a line a curve, with its points, unit and exponents. Of many sizes, some are shown."""
    return "\n\n".join(
        _table(over, [each for each in curves if each.over == over]) for over in dict.fromkeys(each.over for each in curves)
    )


def _table(over: str, curves: Sequence[Curve]) -> str:
    sizes = _some(sorted({size for each in curves for size, _ in each.points}))
    rows = [[f"with so many {over}", *map(_short, sizes), "exponent", "at the end"]]
    for each in curves:
        costs = dict(each.points)
        shown = [f"{costs[size]:.4g}" if size in costs else "-" for size in sizes]
        rows.append([f"{each.title} ({each.unit})", *shown, _text(each.exponent), _text(each.last_exponent)])
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(
        "  ".join([row[0].ljust(first), *(word.rjust(width) for word, width in zip(row[1:], others, strict=True))])
        for row in rows
    )


def _some(sizes: list[float]) -> list[float]:
    """At most _COLUMNS of them, evenly chosen, the first and the last included."""
    if len(sizes) <= _COLUMNS:
        return sizes
    return [sizes[round(place * (len(sizes) - 1) / (_COLUMNS - 1))] for place in range(_COLUMNS)]


def plot(path: Path, curves: Sequence[Curve]) -> None:
    """Write a PNG: a panel for each pair of unit and what grows, both axes logarithmic."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys((each.unit, each.over) for each in curves))
    figure = Figure(figsize=(5.5 * len(kinds), 4.5), layout="constrained")
    for number, (unit, over) in enumerate(kinds):
        axes = figure.add_subplot(1, len(kinds), number + 1)
        for each in curves:
            if (each.unit, each.over) == (unit, over):
                xs, ys = zip(*each.points, strict=True)
                axes.loglog(xs, ys, marker="o", label=f"{each.title} (exponent {_text(each.exponent)})")
        axes.set_xlabel(over)
        axes.set_ylabel(unit)
        axes.legend(fontsize="x-small")
        axes.grid(visible=True, which="major", alpha=0.3)
    figure.savefig(path, dpi=110)


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 2)


def _short(value: float) -> str:
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:g}"


def _text(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"
