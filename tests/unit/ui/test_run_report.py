"""The report's fixed shape, and the figures asked of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psyche_core.telemetry.events import (
    Ended,
    EpochDigest,
    PathOfPeer,
    PeerPaths,
    Resynced,
    ShareChecked,
    Started,
    StepApplied,
    StepTrained,
    Validated,
)
from psyche_core.ui.plot import plot_losses
from psyche_core.ui.run_metrics import RunMetrics
from psyche_core.ui.run_report import make_report, unmet, write_report
from psyche_core.ui.summary import checks_text


@pytest.fixture
def metrics() -> RunMetrics:
    metrics = RunMetrics(run_id="first-light", total_steps=1)
    for name in ("client-1", "client-2"):
        metrics.handle(name, 10.0, Started("client", name, "first-light", "x"))
        metrics.handle(name, 11.0, StepTrained(0, 1, 4.5, 100, 1.0, 812))
        metrics.handle(name, 12.0, StepApplied(0, 1, 2, 2, 0.1))
        metrics.handle(name, 13.0, EpochDigest(0, 1, "ab" * 32))
        metrics.handle(name, 14.0, Ended("done", success=True))
    metrics.handle("client-1", 9.0, Validated(0, 6.0))
    metrics.handle("client-1", 13.0, Validated(1, 4.0))
    return metrics


def test_the_report_has_exactly_the_agreed_keys_and_values(metrics: RunMetrics) -> None:
    def client(name: str) -> dict[str, object]:
        return {"id": name, "losses": [[1, 4.5]], "param_sha256": {"0": "ab" * 32}, "payload_bytes": [812]}

    assert make_report(metrics, wall_seconds=20.12345) == {
        "run_id": "first-light",
        "steps": 1,
        "epochs": 1,
        "clients": [client("client-1"), client("client-2")],
        "validation": [[0, 6.0], [1, 4.0]],
        "identical": True,
        "wall_seconds": 20.123,
        "train_seconds": 2.0,
    }


def test_checked_shares_are_reported_where_there_were_any(metrics: RunMetrics) -> None:
    outcomes: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("passed", ()),
        ("passed", ()),
        ("guilty", ("a1b2c3d4",)),
        ("undecided", ()),
    )
    for height, (outcome, strikes) in enumerate(outcomes):
        for source in ("server", "client-1", "client-2"):  # each tells what it saw
            metrics.handle(source, 9.0, ShareChecked(0, height, "a1b2c3d4", "00000000", outcome, strikes))
    checks = make_report(metrics, wall_seconds=1)["checks"]
    assert checks == {"outcomes": {"passed": 2, "guilty": 1, "undecided": 1}, "strikes": {"a1b2c3d4": 1}}
    assert checks_text(checks) == "4: 2 passed, 1 guilty, 1 undecided; strikes: a1b2c3d4 1"
    assert checks_text({"outcomes": {"passed": 3}, "strikes": {}}) == "3: 3 passed; no strikes"


def test_a_step_in_which_nobody_trained_is_no_gap() -> None:
    """All members recomputed others' shares in it."""
    metrics = RunMetrics(run_id="x", total_steps=None)
    for step, trained in ((1, 2), (2, 0), (3, 2)):
        metrics.handle("client-1", float(step), StepApplied(0, step, trained, trained, 0.1))
    assert metrics.violations == []


def test_kills_are_reported_where_there_were_any(metrics: RunMetrics) -> None:
    metrics.killed("client-2")
    metrics.handle("client-2", 20.0, Started("client", "client-2", "first-light", "x"))
    metrics.handle("client-2", 21.0, Resynced(0, 1))
    metrics.handle("client-1", 22.0, StepApplied(1, 2, 1, 2, 0.1))
    assert make_report(metrics, wall_seconds=1)["faults"] == {"kills": 1, "resyncs": 1, "requeued_shares": 1}


def test_what_was_reached_is_not_complained_about(metrics: RunMetrics) -> None:
    assert list(unmet(make_report(metrics, wall_seconds=1), steps=1, epochs=1, loss_drop=2.0)) == []


def test_each_figure_not_reached_is_one_sentence(metrics: RunMetrics) -> None:
    metrics.clients["client-2"].digests[0] = "cd" * 32
    complaints = list(unmet(make_report(metrics, wall_seconds=1), steps=2, epochs=2, loss_drop=2.01))
    assert [word for word in ("identical", "steps", "epochs", "validation") if not any(word in c for c in complaints)] == []
    assert len(complaints) == 4
    assert "fell by 2.000 nats (6.000 to 4.000)" in complaints[3]


def test_a_fall_cannot_be_shown_with_one_measurement(metrics: RunMetrics) -> None:
    del metrics.validation[1]
    (complaint,) = unmet(make_report(metrics, wall_seconds=1), steps=0, epochs=0, loss_drop=0.1)
    assert "measured 1 times" in complaint


def test_no_validation_is_fine_where_no_fall_is_required(metrics: RunMetrics) -> None:
    metrics.validation.clear()
    assert list(unmet(make_report(metrics, wall_seconds=1), steps=0, epochs=0, loss_drop=0.0)) == []


def test_the_file_reads_back_and_leaves_nothing_beside_it(metrics: RunMetrics, tmp_path: Path) -> None:
    report = make_report(metrics, wall_seconds=1)
    (tmp_path / "report.json").write_text("old")
    write_report(tmp_path / "report.json", report)
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_report_that_cannot_be_written_leaves_the_old_one(metrics: RunMetrics, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("old")
    with pytest.raises(ValueError, match="JSON"):
        write_report(tmp_path / "report.json", {**make_report(metrics, wall_seconds=1), "wall_seconds": float("nan")})
    assert (tmp_path / "report.json").read_text() == "old"


def test_a_loss_that_is_not_finite_is_null_in_the_report_and_shows_no_fall(metrics: RunMetrics, tmp_path: Path) -> None:
    metrics.handle("client-1", 15.0, StepTrained(0, 2, float("inf"), 100, 1.0, 812))
    metrics.handle("client-1", 16.0, Validated(2, float("nan")))
    report = make_report(metrics, wall_seconds=1)
    write_report(tmp_path / "report.json", report)
    read = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert read["validation"][-1] == [2, None]
    assert read["clients"][0]["losses"] == [[1, 4.5], [2, None]]
    (complaint,) = unmet(report, steps=1, epochs=1, loss_drop=1.0)
    assert "not a finite number" in complaint
    plot_losses(tmp_path / "loss.png", read, epoch_ends={})
    assert (tmp_path / "loss.png").stat().st_size > 0


def test_the_report_of_an_overlay_says_how_many_are_reached_over_others(metrics: RunMetrics) -> None:
    metrics.handle("client-2", 15.0, PeerPaths((PathOfPeer("aa", "direct"),), over_others=3))
    first, second = make_report(metrics, wall_seconds=1.0)["clients"]
    assert "over_others" not in first
    assert (second["over_others"], [each["path"] for each in second["paths"]]) == (3, ["direct"])
