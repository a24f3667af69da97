"""The contract and a training against a real MLflow server, installed into a fresh environment; read back through its REST API.

MLFLOW may name the program of an environment that is there already, such as /opt/mlflow/bin/mlflow.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import venv
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from psyche_core.testing.ports import free_port
from psyche_core.testing.tracker import Kept, TrackerConformance
from psyche_tracker_mlflow.hooks import psyche_register_trackers
from psyche_tracker_mlflow.settings import MlflowSettings

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
VERSION = "3.17.2"
READY = "Application startup complete"
MODEL = Path(__file__).parents[3] / "examples" / "local_testnet" / "model"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`mlflow` of an environment of its own: its dependencies are not ours."""
    if "MLFLOW" in os.environ:
        return os.environ["MLFLOW"]

    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=True)
    install = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", f"mlflow=={VERSION}"]
    done = subprocess.run(install, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        pytest.skip(f"mlflow cannot be installed: {done.stderr[-300:]}")
    return str(environment / "bin" / "mlflow")


@pytest.fixture(scope="module")
def address(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    port = free_port()
    where = ("--backend-store-uri", f"sqlite:///{folder}/runs.db", "--artifacts-destination", f"{folder}/files")
    serving = subprocess.Popen(
        [program, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *where],
        cwd=folder,
        env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert serving.stdout is not None
    drain: threading.Thread | None = None
    try:
        told = []
        for line in serving.stdout:
            told.append(line)
            if READY in line:
                break
        else:
            pytest.fail(f"the server ended: {''.join(told)[-2000:]}")
        drain = threading.Thread(target=deque, args=(serving.stdout, 0))  # a full pipe would stop the server
        drain.start()
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(serving.pid, signal.SIGKILL)
        serving.wait()
        if drain is not None:
            drain.join()
        serving.stdout.close()


class Reader:
    """What a server kept."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client = httpx.Client(timeout=60)

    def ask(self, what: str, **asked: str) -> dict[str, Any]:
        answer = self._client.get(f"{self._address}/api/2.0/mlflow/{what}", params=asked)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def run(self, experiment: str) -> dict[str, Any]:
        """The only run of an experiment."""
        number = self.ask("experiments/get-by-name", experiment_name=experiment)["experiment"]["experiment_id"]
        search = f"{self._address}/api/2.0/mlflow/runs/search"
        answer = self._client.post(search, json={"experiment_ids": [number]}).raise_for_status().json()
        (run,) = answer["runs"]
        found: dict[str, Any] = run
        return found

    def kept(self, experiment: str) -> Kept:
        run = self.run(experiment)
        run_id, data = run["info"]["run_id"], run["data"]
        kept = Kept(config={each["key"]: each["value"] for each in data.get("params", [])})
        for newest in data.get("metrics", []):
            history = self.ask("metrics/get-history", run_id=run_id, metric_key=newest["key"])["metrics"]
            for each in sorted(history, key=lambda each: each["timestamp"]):
                kept.figures[each["key"], int(each.get("step", 0))] = each["value"]
        for path in self._files(run_id, ""):
            text = self._client.get(f"{self._address}/get-artifact", params={"run_uuid": run_id, "path": path})
            key, _, name = path.rpartition("/step-")
            kept.texts[key, int(name.removesuffix(".txt"))] = text.raise_for_status().content.decode()
        return kept

    def _files(self, run_id: str, folder: str) -> Iterator[str]:
        for each in self.ask("artifacts/list", run_id=run_id, path=folder).get("files", []):
            if each["is_dir"]:
                yield from self._files(run_id, each["path"])
            else:
                yield each["path"]

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def reader(address: str) -> Iterator[Reader]:
    reading = Reader(address)
    yield reading
    reading.close()


class TestRealMlflow(TrackerConformance):
    (registration,) = psyche_register_trackers()
    hooks = "psyche_tracker_mlflow.hooks"
    heavy = ("httpx", "mlflow")

    @pytest.fixture(autouse=True)
    def serve(self, address: str, reader: Reader) -> None:
        self.address, self.reader = address, reader

    def settings(self, folder: Path) -> MlflowSettings:
        return MlflowSettings(mlflow_tracking_uri=self.address, mlflow_experiment=str(folder))

    def read(self, folder: Path) -> Kept:
        return self.reader.kept(str(folder))


def test_a_training_is_found_through_the_search_of_the_server(address: str, reader: Reader, tmp_path: Path) -> None:
    (tmp_path / "part.ds").write_bytes(b"\x05\x00\x06\x00\x07\x00\x08\x00" * 2000)
    sizes = ("--total-batch", "2", "--micro-batch", "1", "--sequence-length", "32", "--steps", "5")
    words = ["train-local", "--model", str(MODEL), "--data-path", str(tmp_path), *sizes, "--device", "cpu", "--logs", "json"]
    tracker = ("--tracker", "mlflow", "--mlflow-tracking-uri", address, "--mlflow-experiment", "trained")
    done = subprocess.run(
        [sys.executable, "-m", "psyche_core", *words, *tracker], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    losses = {("train/loss", event["step"]): event["loss"] for event in events if event["event"] == "step_trained"}
    run, kept = reader.run("trained"), reader.kept("trained")
    assert len(losses) == 5
    assert {key: kept.figures[key] for key in losses} == pytest.approx(losses)
    assert run["info"]["status"] == "FINISHED"
    assert kept.config["optimizer"] == "AdamW"
    assert {each["key"] for each in run["data"]["tags"]} >= {"psyche.run_id", "psyche.ended"}
