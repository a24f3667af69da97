"""A run of real processes whose model goes to a plugin's store, a real WebDAV server, and comes from there to later members."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from live_run import RUN_ID, RUN_KEYS, THREE, StartRun
from psyche_core.telemetry.events import CheckpointStored, EpochDigest, ModelLoaded, StepTrained

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.soak, pytest.mark.timeout(300)]

PLUGIN = Path(__file__).parents[2] / "examples" / "plugins" / "store_webdav"


@pytest.fixture
def run_keys() -> Mapping[str, object]:
    return {**RUN_KEYS, "rounds_per_epoch": 6, "cooldown_time": 2}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A WebDAV server, and the plugin of the cookbook where all processes of the test find it."""
    info = tmp_path / "site" / "psyche_store_webdav-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: psyche-store-webdav\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[psyche.plugins]\nstore.dav = psyche_store_webdav.hooks\n")
    path = [str(PLUGIN), str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))

    spec = importlib.util.spec_from_file_location("dav_server", PLUGIN / "tests" / "dav_server.py")
    assert spec is not None
    assert spec.loader is not None
    helper = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "dav_server", helper)
    spec.loader.exec_module(helper)
    (tmp_path / "served").mkdir()
    with helper.dav_server(tmp_path / "served") as running:
        yield running


def test_when_all_members_are_gone_the_next_come_with_the_model_from_a_plugins_store(live_run: StartRun, server: Any) -> None:
    """Killed in the first cooldown: who comes next has nothing but the place the run refers to, though it began in a folder."""
    url = f"dav://{server.host}/models"
    run = live_run(total_steps=24, cooldown_time=6, server=("--reconnect-seconds", 1))
    for name in THREE:
        run.start_client(name, "--model-store", url)
    stored = run.wait(lambda: [event for name in THREE for event in run.told(name, CheckpointStored)])[-1]
    run.wait(lambda: all(len(run.told(name, EpochDigest)) == 1 for name in THREE))
    run.kill(*THREE)
    place = server.folder / "models" / f"{RUN_ID}-step6"
    assert stored.step == 6
    assert {"config.json", "model.safetensors", "psyche.json"} <= {path.name for path in place.iterdir()}
    assert not any(path.name.endswith(".partial") for path in place.iterdir())

    begun, asked = time.time(), len(server.asked)
    others = ("client-4", "client-5", "client-6")
    for name in others:
        run.start_client(name, "--cache-dir", run.folder / f"{name}-cache")
    run.wait_for_steps("client-4", 1, after=begun)
    run.wait_for_end()
    run.assert_kept_its_promises(steps=24, finishers=others)
    assert run.told("client-4", StepTrained)[0].step == 7
    assert [run.told(name, ModelLoaded)[-1].step for name in others] == [6, 6, 6], "the stored model"
    fetched = [path for method, path in server.asked[asked:] if method == "GET" and path.endswith("model.safetensors")]
    assert fetched == [f"/models/{RUN_ID}-step6/model.safetensors"] * len(others)
