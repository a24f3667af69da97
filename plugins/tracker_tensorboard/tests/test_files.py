"""Files as they are on disk: after a restart, and while the client still runs."""

from pathlib import Path

from plugins.tracker_tensorboard.tests.board_files import read
from psyche_core.interfaces import TrackedRun
from psyche_tracker_tensorboard.settings import TensorboardSettings
from psyche_tracker_tensorboard.tracker import TensorboardTracker, folder_name

RUN = TrackedRun(run_id="r", member="cd" * 32, config={"optimizer": "a|b\nc"})


def test_figures_are_on_disk_before_the_end(tmp_path: Path) -> None:
    tracker = TensorboardTracker(RUN, TensorboardSettings(tensorboard_dir=tmp_path))
    tracker.log_figures(4, {"train/loss": 2.5}, time=1e9)
    assert read(tmp_path).figures == {("train/loss", 4): 2.5}
    tracker.finish(success=True, reason="over")


def test_who_starts_again_continues_in_the_same_folder(tmp_path: Path) -> None:
    for step in (1, 2):
        tracker = TensorboardTracker(RUN, TensorboardSettings(tensorboard_dir=tmp_path))
        tracker.log_figures(step, {"train/loss": float(step)}, time=1e9)
        tracker.finish(success=False, reason="killed")
    assert [path.name for path in tmp_path.iterdir()] == ["r-cdcdcdcd"]
    assert read(tmp_path).figures == {("train/loss", 1): 1.0, ("train/loss", 2): 2.0}


def test_a_setting_cannot_break_the_table(tmp_path: Path) -> None:
    tracker = TensorboardTracker(RUN, TensorboardSettings(tensorboard_dir=tmp_path))
    tracker.finish(success=True, reason="over")
    assert list(read(tmp_path).config) == ["optimizer"]


def test_names_are_one_folder() -> None:
    assert folder_name("..") == "%2E%2E"
    assert "/" not in folder_name("../x")
