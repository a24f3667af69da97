"""`psyche preview-lr`: the table is the schedule that clients train with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psyche_core.config.run_config import load_run_file
from psyche_core.coordinator.learning_rate import learning_rate
from tests.unit.cli.conftest import Psyche

STATE = Path(__file__).parents[3] / "examples" / "local_testnet" / "state.toml"
WSD = """{ WarmupStableDecay = { base_lr = 1e-3, warmup_init_lr = 0.0, warmup_steps = 10, stable_steps = 20,
cosine_decay_steps = 30, cosine_decay_final_lr = 1e-4, linear_decay_steps = 40, linear_decay_final_lr = 0.0 } }"""


def file(tmp_path: Path, schedule: str, steps: int = 360) -> Path:
    before, _, after = STATE.read_text().partition("[model.LLM.lr_schedule")
    rest = after.partition("\n[")[2]
    text = before.replace("cold_start_warmup_steps", f"lr_schedule = {' '.join(schedule.split())}\ncold_start_warmup_steps")
    state = tmp_path / "state.toml"
    state.write_text(text.replace("total_steps = 360", f"total_steps = {steps}") + (f"\n[{rest}" if rest else ""))
    return state


def test_the_rates_are_the_runs(psyche: Psyche) -> None:
    told = json.loads(psyche("preview-lr", "--state", STATE, "--rows", 9, "--json").out)
    run = load_run_file(STATE)
    assert told["total_steps"] == run.config.total_steps
    assert [row["step"] for row in told["rates"]][0::10] == [1]
    assert told["rates"][-1]["step"] == run.config.total_steps
    for row in told["rates"]:
        assert row["learning_rate"] == learning_rate(run.model.LLM.lr_schedule, row["step"])


def test_each_change_of_the_schedule_has_a_row(psyche: Psyche, tmp_path: Path) -> None:
    told = json.loads(psyche("preview-lr", "--state", file(tmp_path, WSD), "--rows", 2, "--json").out)
    marks = {row["step"]: row["mark"] for row in told["rates"] if row["mark"]}
    assert marks == {10: "stable", 30: "cosine decay", 60: "linear decay", 100: "final rate"}


def test_a_schedule_that_does_not_fit_the_run_is_noted(psyche: Psyche, tmp_path: Path) -> None:
    assert "the schedule ends at step 100" in psyche("preview-lr", "--state", file(tmp_path, WSD)).out
    assert (
        "the run ends at step 50, before the schedule does at step 100"
        in psyche("preview-lr", "--state", file(tmp_path, WSD, 50)).out
    )


def test_a_picture_is_drawn(psyche: Psyche, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert psyche("preview-lr", "--state", STATE, "--plot", tmp_path / "rates.png").code == 0
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    assert psyche("preview-lr", "--state", STATE, "--plot", tmp_path / "nowhere" / "rates.png").code == 2
