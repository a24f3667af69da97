"""What a run is called, when things happened, how it ended, and what the library must not do."""

import os
import sys
from pathlib import Path

import pytest
import wandb

from plugins.tracker_wandb.tests.offline_files import read_all
from psyche_core.interfaces import TrackedRun
from psyche_tracker_wandb.settings import WandbSettings
from psyche_tracker_wandb.tracker import WandbTracker

RUN = TrackedRun(run_id="first-light", member="cd" * 32, config={"total_steps": 9})


def keep(folder: Path, *, success: bool = True, **settings: str) -> None:
    tracker = WandbTracker(RUN, WandbSettings(wandb_mode="offline", wandb_dir=folder, **settings))  # type: ignore[arg-type]
    tracker.log_figures(4, {"train/loss": 2.5}, time=1_700_000_000.0)
    tracker.finish(success=success, reason="over")


def test_names_follow_from_run_and_member(tmp_path: Path) -> None:
    keep(tmp_path)
    _, (facts,) = read_all(tmp_path)
    assert {name: facts[name] for name in ("project", "name", "group", "exit_code")} == {
        "project": "psyche",
        "name": "first-light-cdcdcdcd",
        "group": "first-light",
        "exit_code": 0,
    }
    assert facts["times"] == {4: 1_700_000_000.0}
    assert facts["host"] != os.uname().nodename, "the name of the machine is not told"


def test_options_name_it_otherwise_and_a_failure_is_one(tmp_path: Path) -> None:
    keep(tmp_path, success=False, wandb_project="p", wandb_run="mine", wandb_group="g", wandb_entity="team")
    _, (facts,) = read_all(tmp_path)
    assert {name: facts[name] for name in ("project", "name", "group", "entity", "exit_code")} == {
        "project": "p",
        "name": "mine",
        "group": "g",
        "entity": "team",
        "exit_code": 1,
    }


def test_the_command_line_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["psyche", "--hf-token", "hf_secret"])
    keep(tmp_path)
    read_all(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert b"hf_secret" not in path.read_bytes(), path


def test_a_stop_on_the_page_interrupts_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = WandbTracker(RUN, WandbSettings(wandb_mode="offline", wandb_dir=tmp_path))
    stop = tracker._run.settings.stop_fn
    assert stop is not None, "otherwise the library sends SIGINT"
    stop()
    tracker.finish(success=True, reason="over")
    assert "it goes on, stop it with Ctrl-C" in caplog.text
    assert wandb.run is None
