"""The last thing a run prints."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from psyche_core.telemetry.events import EpochDigest, NetworkTotals, Started, StepApplied, StepTrained, Validated
from psyche_core.ui.run_metrics import RunMetrics
from psyche_core.ui.run_report import make_report
from psyche_core.ui.summary import summary


def printed(metrics: RunMetrics) -> str:
    stream = io.StringIO()
    report = make_report(metrics, wall_seconds=132.0)
    Console(file=stream, width=80).print(summary(metrics, report, files=[Path("runs/demo/report.json")]))
    return stream.getvalue()


def test_a_finished_run_in_eighty_columns() -> None:
    metrics = RunMetrics(run_id="first-light", total_steps=2)
    metrics.handle("client-1", 0.0, Started("client", "ab" * 32, "first-light", "x"))
    metrics.handle("client-1", 0.0, Validated(0, 6.962))
    for step, loss in ((1, 6.955), (2, 4.462)):
        metrics.handle("client-1", 10.0 * step, StepTrained(0, step, loss, 1000, 1.0, 21_200))
        metrics.handle("client-1", 10.0 * step, StepApplied(0, step, 1, 1, 0.1))
    metrics.handle("client-1", 20.0, EpochDigest(0, 2, "cd" * 32))
    metrics.handle("client-1", 20.0, Validated(2, 4.548))
    metrics.handle("client-1", 20.0, NetworkTotals(13_000_000, 12_000_000, 2))
    text = printed(metrics)
    assert "2 in 1 epochs" in text
    assert "identical, bit for bit" in text
    assert "6.962 (step 0) → 4.548 (step 2), -2.414 nats per token" in text
    assert "11 s of 2 min 12 s" in text
    row = next(line for line in text.splitlines() if line.startswith("client-1"))
    assert row.split() == ["client-1", "abababab", "2", "6.955", "4.462", "21.2", "kB", "13.0", "MB", "12.0", "MB"]
    assert "→ runs/demo/report.json" in text
    assert "…" not in text, "nothing is cut"


def test_kills_and_what_came_of_them_are_told() -> None:
    metrics = RunMetrics(run_id="r")
    metrics.handle("client-1", 0.0, Started("client", "ab" * 32, "r", "x"))
    assert "kills" not in printed(metrics)
    metrics.killed("client-1")
    assert "1 kills, 0 resyncs, 0 shares handed out again" in printed(metrics)


def test_a_run_of_which_nothing_is_known_claims_nothing() -> None:
    metrics = RunMetrics(run_id="r")
    metrics.expect("client-1")
    text = printed(metrics)
    assert "NOT shown to be identical" in text
    assert "validation" not in text
