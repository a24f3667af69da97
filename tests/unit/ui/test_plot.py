"""The loss curve: smoothing is arithmetic, the picture is a picture."""

from __future__ import annotations

import math
import random
import statistics
from pathlib import Path

import pytest

from psyche_core.ui.plot import plot_losses, smoothed


def test_smoothing_keeps_every_step() -> None:
    points = [(step, float(step % 2)) for step in range(1, 8)]
    result = smoothed(points, width=3)
    assert [step for step, _ in result] == list(range(1, 8))
    assert result[3][1] == pytest.approx(2 / 3), "the mean of three, where their slope is none"


def test_the_end_of_the_curve_is_as_smooth_as_its_middle() -> None:
    """Its last point was the last measurement, noise and all, because the window shrank to it."""
    rng = random.Random(5)
    ends, middles = [], []
    for _ in range(300):
        result = smoothed([(step, 3.0 + rng.gauss(0, 0.1)) for step in range(40)])
        ends.append(result[-1][1])
        middles.append(result[20][1])
    assert statistics.stdev(middles) < 0.04
    assert statistics.stdev(ends) < 0.075, "a line through nine points: two thirds of the noise of one"


def test_the_end_of_a_falling_curve_does_not_lag() -> None:
    points = [(step, 9.0 - 0.1 * step) for step in range(40)]
    assert smoothed([*points, (40, 5.3)])[-1][1] == pytest.approx(5.0, abs=0.2), "one bad step does not bend the end to itself"
    assert smoothed(points)[-1][1] == pytest.approx(points[-1][1])


def test_smoothing_leaves_out_what_is_not_finite() -> None:
    result = smoothed([(1, 2.0), (2, math.nan), (3, 2.0), (4, 2.0), (5, math.inf), (6, 2.0)], width=3)
    assert [step for step, _ in result] == [1, 3, 4, 6]
    assert [value for _, value in result] == pytest.approx([2.0] * 4)


def test_smoothing_keeps_a_straight_line() -> None:
    points = [(step, 2.0 * step) for step in range(20)]
    assert [value for _, value in smoothed(points)] == pytest.approx([value for _, value in points])


def test_smoothing_nothing_is_nothing() -> None:
    assert smoothed([]) == []


@pytest.mark.parametrize("steps", [0, 1, 40])
def test_the_picture_is_a_png_of_its_size(tmp_path: Path, steps: int) -> None:
    report = {
        "run_id": "first-light",
        "steps": steps,
        "clients": [{"id": "ab" * 32, "losses": [[step, 6 - step / 20] for step in range(1, steps + 1)]}],
        "validation": [[0, 6.0], [steps, 4.0]] if steps else [],
        "identical": True,
    }
    plot_losses(tmp_path / "loss.png", report, epoch_ends={0: steps // 2, 1: steps} if steps else {})
    image = pytest.importorskip("PIL.Image").open(tmp_path / "loss.png")
    assert image.format == "PNG"
    assert image.size == (1080, 600)
    assert len(set(image.convert("L").tobytes())) > 20, "more than an empty sheet"
