"""The comparison with what people would use instead, in its quick mode: DDP and ours, each a real run over shaped lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nat.lab import missing

pytestmark = [pytest.mark.soak, pytest.mark.e2e, pytest.mark.timeout(1500)]
ROOT = Path(__file__).parents[2]


def measured(out: Path, *options: str) -> tuple[dict[str, Any], str]:
    """The JSON of a run of the benchmark, and what it said meanwhile."""
    words = ("--quick", "--systems", "alone,ddp,ours-8", "--members", "2", "--sequences", "2", "--own-torch", "--json")
    command = [sys.executable, "-m", "benchmarks.peers", *words, "--cache", str(out / "cache"), "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1400, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout), done.stderr


def test_the_quick_comparison_measures_ddp_and_ours_and_goes_on_where_it_was(tmp_path: Path) -> None:
    why_not = missing()
    if why_not:
        pytest.skip(why_not)
    found, _ = measured(tmp_path)
    rows = {(row["system"], row["megabits"]): row for row in found["rows"]}
    assert set(rows) == {("alone", None), *((name, speed) for name in ("ddp", "ours-8") for speed in (10.0, None))}
    for row in rows.values():
        assert "failed" not in row
        assert row["startup_s"] > 0
        assert row["step_s"] > 0
        assert row["memory"] > 50e6
        assert 4.0 < row["validation_loss"] < 7.0  # ln 1024 is 6.9
    parameters_bytes = 4 * found["parameters"]
    assert rows["alone", None]["sent_per_step"] < 1000  # what a kernel says by itself
    assert rows["ddp", 10.0]["sent_per_step"] == pytest.approx(parameters_bytes, rel=0.3)  # of two members: half out, half back
    assert rows["ours-8", 10.0]["sent_per_step"] < parameters_bytes / 20
    verdicts = {(cell["system"], cell["fault"]): cell["verdict"] for cell in found["faults"]}
    assert verdicts["ddp", "kill"] == "dies"
    assert verdicts["ours-8", "kill"] == "works"
    assert verdicts["ours-8", "join"] == "works"
    assert (tmp_path / "loss.png").exists()

    again, told = measured(tmp_path)
    assert again == found
    assert "..." not in told, "nothing is measured twice"
