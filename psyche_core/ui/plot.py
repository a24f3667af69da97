"""The loss curve of a run as a PNG, drawn from its report alone, so that any stored report can be drawn again.

Needs matplotlib (extra `plot`), imported when called. Draws off screen whatever backend the user has configured.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from psyche_core.text_safety import printable

SMOOTHING_STEPS = 9
"""Width of the smoothing window, in points."""


def smoothed(points: list[tuple[int, float]], *, width: int = SMOOTHING_STEPS) -> list[tuple[int, float]]:
    """Smooth by local straight lines: each value is replaced by that of the line that best fits the `width` points around it.

    At both ends the window keeps its width and lies to one side. So the ends are as smooth as the rest: the last point of the
    curve is not just the last measurement, and it does not lag behind a slope, as a mean of the points before it would. Values
    that are not finite are left out.
    """
    known = [(step, value) for step, value in points if math.isfinite(value)]
    width = min(width, len(known))
    if width < 3:
        return known

    result = []
    for index, (step, _) in enumerate(known):
        first = min(max(index - width // 2, 0), len(known) - width)
        window = known[first : first + width]
        middle = statistics.fmean(place for place, _ in window)
        mean = statistics.fmean(value for _, value in window)
        slope = sum((place - middle) * (value - mean) for place, value in window) / sum(
            (place - middle) ** 2 for place, _ in window
        )
        result.append((step, mean + slope * (step - middle)))
    return result


def plot_losses(path: Path, report: dict[str, Any], *, epoch_ends: dict[int, int]) -> None:
    """Draw each client's loss, their smoothed mean, the validation points and the epochs' ends.

    report: as `run_report.make_report` returns it. epoch_ends: epoch -> step. Raises ModuleNotFoundError without matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    by_step: dict[int, list[float]] = {}
    for number, client in enumerate(report["clients"], start=1):
        name = f"client {number} ({printable(client['id'][:8])})"
        axes.plot(*_columns(client["losses"]), linewidth=0.8, alpha=0.45, label=name)
        for step, loss in client["losses"]:
            by_step.setdefault(step, []).append(_number(loss))
    mean = smoothed([(step, sum(losses) / len(losses)) for step, losses in sorted(by_step.items())])
    if mean:
        axes.plot(*_columns(mean), color="black", linewidth=1.8, label=f"mean, smoothed over {SMOOTHING_STEPS} steps")
    if report["validation"]:
        axes.plot(*_columns(report["validation"]), "o--", color="crimson", linewidth=1, markersize=5, label="validation")
    for number, step in enumerate(sorted(epoch_ends.values())):
        axes.axvline(step, color="grey", linewidth=0.8, linestyle=":", label="end of an epoch" if number == 0 else None)

    identical = "replicas identical" if report["identical"] else "replicas NOT identical"
    title = f"{printable(report['run_id'], at_most=64)}: {len(report['clients'])} clients, {report['steps']} steps, {identical}"
    axes.set_title(title, parse_math=False)  # a run's name is not a formula
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(visible=True, alpha=0.2)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    """Draw. numpy says now and then that matplotlib's search for ticks divides invalid values, for limits that are valid."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        figure.savefig(path, format="png")


def _columns(points: list[Any]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [_number(value) for _, value in points]


def _number(loss: float | None) -> float:
    """Return a loss for matplotlib, which leaves a gap at a value that is not finite."""
    return math.nan if loss is None else loss


def plot_rates(path: Path, rates: list[tuple[int, float]], *, title: str) -> None:
    """Draw a learning-rate schedule: (step, rate). Raises ModuleNotFoundError without matplotlib, and OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(*_columns(rates), color="black", linewidth=1.4)
    axes.set_title(printable(title), parse_math=False)
    axes.set_xlabel("step")
    axes.set_ylabel("learning rate")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.2)
    _save(figure, path)
