"""The tracker keeps the contract; its files are read with TensorBoard's own reader."""

from pathlib import Path

from plugins.tracker_tensorboard.tests.board_files import read
from psyche_core.testing.tracker import Kept, TrackerConformance
from psyche_tracker_tensorboard.hooks import psyche_register_trackers
from psyche_tracker_tensorboard.settings import TensorboardSettings


class TestTensorboard(TrackerConformance):
    (registration,) = psyche_register_trackers()
    hooks = "psyche_tracker_tensorboard.hooks"
    heavy = ("tensorboard", "google.protobuf", "grpc")

    def settings(self, folder: Path) -> TensorboardSettings:
        return TensorboardSettings(tensorboard_dir=folder)

    def read(self, folder: Path) -> Kept:
        return read(folder)
