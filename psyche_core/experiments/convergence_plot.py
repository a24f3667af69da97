"""The plot of a convergence experiment: loss by step, and final loss by bytes. Needs matplotlib (extra `plot`)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from psyche_core.experiments.convergence import Outcome


def plot(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write a PNG. Lines are means over seeds, dots are single trainings. Raises ModuleNotFoundError without matplotlib."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    by_recipe: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_recipe.setdefault(outcome.recipe.title, []).append(outcome)
    figure = Figure(figsize=(13, 5.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for number, (title, same) in enumerate(by_recipe.items()):
        colour = f"C{number % 10}"
        steps = [step for step, _ in same[0].losses]
        means = [statistics.fmean(outcome.losses[place][1] for outcome in same) for place in range(len(steps))]
        style = "-" if number < 10 else "--"
        left.plot(steps, means, style, color=colour, linewidth=1.4, label=title)
        marker = "o" if number < 10 else "s"
        right.scatter(
            [outcome.bytes_per_step for outcome in same],
            [outcome.validation_loss for outcome in same],
            color=colour,
            marker=marker,
        )
    left.set_xlabel("applied steps")
    left.set_ylabel("validation loss (nats per token)")
    left.legend(fontsize="x-small")
    left.grid(visible=True, alpha=0.2)
    right.set_xscale("log")
    right.set_xlabel("bytes a member sends in a step")
    right.set_ylabel("final validation loss")
    right.grid(visible=True, alpha=0.2)
    with np.errstate(invalid="ignore"):  # numpy may see flags that torch's kernels left, when matplotlib divides plain numbers
        figure.savefig(path, format="png")
