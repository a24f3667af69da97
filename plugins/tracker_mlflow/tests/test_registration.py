"""What this distribution registers, as runs find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.tracker_mlflow.tests.mlflow_server import MlflowServer
from psyche_core.testing.registration import RegistrationConformance


class TestMlflow(RegistrationConformance):
    kind, name = "tracker", "mlflow"
    heavy = (*RegistrationConformance.heavy, "httpx", "mlflow")

    @pytest.fixture(autouse=True)
    def serve(self, server: MlflowServer) -> None:
        self.server = server

    def settings(self, folder: Path) -> dict[str, str]:
        return {"mlflow_tracking_uri": self.server.address}
