"""Which rate suits each system best, of those that were tried on lines without a limit, and which cells are shown then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.peers.measures import loss_at
from benchmarks.peers.systems import SYSTEMS

FACTORS = (0.5, 1.0, 2.0)
"""Of each system's rate."""

_TOKENS = 1


def factor_of(cell: Mapping[str, Any]) -> float:
    """By what a cell's system had its rate multiplied."""
    factor: float = cell.get("factor", 1.0)
    return factor


def losses(cells: Mapping[str, dict[str, Any]], system: str) -> dict[float, float]:
    """Validation loss by factor, unshaped, after the most tokens that the runs of all factors have reached.

    After the same tokens and not at the end: one run makes a step more than another by chance, and a step is worth more than
    most differences between rates.
    """
    curves = _curves(cells, system)
    reached = _reached(curves)
    found = {factor: _at(curves[factor], reached) for factor in sorted(curves)}
    return {factor: loss for factor, loss in found.items() if loss is not None}


def _at(curve: list[list[float]], tokens: float) -> float | None:
    return curve[-1][-1] if curve[-1][_TOKENS] == tokens else loss_at(curve, tokens, column=_TOKENS)


def best(cells: Mapping[str, dict[str, Any]], system: str) -> float:
    """The factor with the lowest loss; 1 if none was tried."""
    found = losses(cells, system)
    return min(found, key=lambda factor: found[factor]) if found else 1.0


def shown(cells: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One cell that trained for each system and speed: that with the best factor, or the nearest to it that was measured."""
    found = {cell["key"]: cell for cell in cells}
    kept: dict[tuple[str, float | None], dict[str, Any]] = {}
    for cell in found.values():
        if cell["fault"]:
            continue
        place = (cell["system"], cell["megabits"])
        chosen, present = best(found, cell["system"]), kept.get(place)
        if present is None or abs(factor_of(cell) - chosen) < abs(factor_of(present) - chosen):
            kept[place] = cell
    return list(kept.values())


def table(cells: Mapping[str, dict[str, Any]]) -> str:
    """A Markdown table of systems with more than one rate; "" if there is none."""
    tried = {name: found for name in SYSTEMS if len(found := losses(cells, name)) > 1}
    if not tried:
        return ""
    heads = "".join(f" rate × {factor:g} |" for factor in FACTORS)
    lines = [f"| system | tokens |{heads}", "|---" * (2 + len(FACTORS)) + "|"]
    for name, found in tried.items():
        best_one = min(found.values())
        words = [_loss(found.get(factor), best=best_one) for factor in FACTORS]
        lines.append(f"| {SYSTEMS[name].title} | {_reached(_curves(cells, name)):,.0f} | {' | '.join(words)} |")
    return "\n".join(lines)


def _loss(loss: float | None, *, best: float) -> str:
    if loss is None:
        return "-"
    return f"**{loss:.2f}**" if loss == best else f"{loss:.2f}"


def _curves(cells: Mapping[str, dict[str, Any]], system: str) -> dict[float, list[list[float]]]:
    """Validation losses of a system's runs on lines without a limit, by factor."""
    return {
        factor_of(cell): cell["validation"]
        for cell in cells.values()
        if cell["system"] == system and cell["megabits"] is None and not cell["fault"] and cell.get("validation")
    }


def _reached(curves: Mapping[float, list[list[float]]]) -> float:
    return min((curve[-1][_TOKENS] for curve in curves.values()), default=0)
