"""The tracker keeps the contract; what it kept is read from a server that checks every request."""

from pathlib import Path

import pytest

from plugins.tracker_mlflow.tests.mlflow_server import MlflowServer
from psyche_core.testing.tracker import Kept, TrackerConformance
from psyche_tracker_mlflow.hooks import psyche_register_trackers
from psyche_tracker_mlflow.settings import MlflowSettings


class TestMlflow(TrackerConformance):
    (registration,) = psyche_register_trackers()
    hooks = "psyche_tracker_mlflow.hooks"
    heavy = ("httpx", "mlflow")

    @pytest.fixture(autouse=True)
    def serve(self, server: MlflowServer) -> None:
        self.server = server

    def settings(self, folder: Path) -> MlflowSettings:
        return MlflowSettings(mlflow_tracking_uri=self.server.address, mlflow_experiment=str(folder))

    def read(self, folder: Path) -> Kept:
        number = self.server.experiments[str(folder)]
        (run,) = [run for run in self.server.runs.values() if run.experiment == number]
        return run.kept
