"""The tracker keeps the contract, offline, with the real library; its files are read without it."""

from pathlib import Path

from plugins.tracker_wandb.tests.offline_files import read_all
from psyche_core.testing.tracker import Kept, TrackerConformance
from psyche_tracker_wandb.hooks import psyche_register_trackers
from psyche_tracker_wandb.settings import WandbSettings


class TestWandb(TrackerConformance):
    (registration,) = psyche_register_trackers()
    hooks = "psyche_tracker_wandb.hooks"
    heavy = ("wandb",)

    def settings(self, folder: Path) -> WandbSettings:
        return WandbSettings(wandb_mode="offline", wandb_dir=folder)

    def read(self, folder: Path) -> Kept:
        return read_all(folder)[0]
