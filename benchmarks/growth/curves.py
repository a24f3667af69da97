"""Costs at several sizes, and the exponent with which each grows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COLUMNS = 7
"""Most sizes of a table."""
_LEAST_RATIO = 1.3
"""Of two sizes that a plot's axis names."""
_LEAST_SPAN = 10.0
"""A plot's highest cost over its lowest, at least."""


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
        shown = [_cost(costs[size]) if size in costs else "-" for size in sizes]
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
        _scales(axes, sizes=_apart({size for each in curves if each.over == over for size, _ in each.points}))
        axes.set_xlabel(over)
        axes.set_ylabel(unit)
        axes.legend(fontsize="x-small")
        axes.grid(visible=True, which="major", alpha=0.3)
    figure.savefig(path, dpi=110)


def _apart(sizes: set[float]) -> list[float]:
    """Sizes whose names do not touch on a logarithmic axis, the largest first."""
    kept: list[float] = []
    for size in sorted(sizes, reverse=True):
        if not kept or kept[-1] > _LEAST_RATIO * size:
            kept.append(size)
    return kept


def _scales(axes: Any, *, sizes: Sequence[float]) -> None:
    """Plain numbers at both axes, the sizes themselves at the lower one, and a cost that hardly changes looks like that."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    axes.xaxis.set_major_locator(FixedLocator(list(sizes)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _short(size)))
    low, high = axes.get_ylim()
    if high < _LEAST_SPAN * low:
        middle = math.sqrt(low * high)
        axes.set_ylim(middle / math.sqrt(_LEAST_SPAN), middle * math.sqrt(_LEAST_SPAN))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda cost, _: _cost(cost)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 2)


def _short(value: float) -> str:
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:g}"


def _cost(value: float) -> str:
    """Four digits, and no powers of ten below a million millions."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _text(value: float) -> str:
    return "-" if math.isnan(value) else f"{round(value, 2) + 0.0:.2f}"  # + 0.0: no "-0.00"
