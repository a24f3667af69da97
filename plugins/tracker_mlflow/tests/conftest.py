"""A server of MLflow's API, and a user without any of MLflow's variables."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from plugins.tracker_mlflow.tests.mlflow_server import MlflowServer


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("MLFLOW_", "PSYCHE_MLFLOW_")):
            monkeypatch.delenv(name)


@pytest.fixture
def server() -> Iterator[MlflowServer]:
    serving = MlflowServer()
    yield serving
    serving.close()
    assert serving.problems == []
