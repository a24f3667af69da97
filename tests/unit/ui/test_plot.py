"""The loss curve: smoothing is arithmetic, the picture is a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from psyche_core.ui.plot import plot_losses, smoothed


def test_smoothing_keeps_every_step_and_both_ends() -> None:
    points = [(step, float(step % 2)) for step in range(1, 8)]
    result = smoothed(points, width=3)
    assert [step for step, _ in result] == list(range(1, 8))
    assert result[0] == points[0]
    assert result[-1] == points[-1]
    assert result[3][1] == pytest.approx(2 / 3)


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
