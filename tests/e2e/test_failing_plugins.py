"""Plugins that repeat a mistake, in a testnet of real processes: each ends with one sentence, not in rounds without results."""

from __future__ import annotations

import json
import re
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

from psyche_core.hookspecs import GROUP
from psyche_core.telemetry.events import Dropped
from psyche_core.telemetry.sinks import from_json
from psyche_core.wire.signing import SecretKey
from tests.conftest import LocalTestnet
from tests.e2e.conftest import Started

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(300)]

DATA = """
from psyche_core.builtin.dummy_data import DummyData
from psyche_core.hookspecs import DataRegistration, hookimpl

PSYCHE_PLUGIN_API = "1.0"

class OneShort(DummyData):
    async def read(self, batches, *, timeout):
        batch = batches[0]
        return await super().read([type(batch)(batch.first, batch.last - 1)], timeout=timeout)

def create(context):
    return OneShort(sequence_length=context.sequence_length)

@hookimpl
def psyche_register_data():
    return [DataRegistration(name="Failing", summary="one sequence short", settings=None, create=create)]
"""

OPTIMIZER = """
from psyche_core.builtin.dummy_settings import DummySettings
from psyche_core.hookspecs import OptimizerRegistration, hookimpl

PSYCHE_PLUGIN_API = "1.0"

def create(context):
    from psyche_core.builtin.dummy_optimizer import DummyOptimizer

    class Failing(DummyOptimizer):
        def apply(self, step, payloads, *, learning_rate, own_accepted):
            return payloads[len(payloads)]

    return Failing(context.model)

@hookimpl
def psyche_register_optimizers():
    return [OptimizerRegistration(name="Failing", summary="applies nothing", settings=DummySettings, create=create)]
"""

SHORT = {
    "init_min_clients": 2,
    "min_clients": 2,
    "total_steps": 60,
    "rounds_per_epoch": 6,
    "warmup_time": 6,
    "cooldown_time": 1,
    "max_round_train_time": 2,
    "global_batch_size_start": 6,
    "global_batch_size_end": 6,
}


def install(site: Path, kind: str, text: str) -> None:
    """Write the distribution of a plugin into a folder of Python's path."""
    info = site / "failing_plugin-0.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: failing-plugin\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{kind}.Failing = failing_plugin\n")
    (site / "failing_plugin.py").write_text(text)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of Python's path, for programs that are started after this."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return tmp_path / "site"


def choose(state: Path, key: str) -> None:
    """Let a run use the plugin of that key of its model."""
    run = tomllib.loads(state.read_text())
    run["model"]["LLM"][key] = "Failing"
    state.write_text(tomli_w.dumps(run))


def test_a_data_plugin_that_is_always_one_sequence_short_ends_its_client_with_one_sentence(
    site: Path, start: Started, local_testnet: LocalTestnet, tmp_path: Path
) -> None:
    """It was dropped for being too slow, and came back, again and again."""
    config = local_testnet(**SHORT)
    choose(config / "state.toml", "data_location")
    install(site, "data", DATA)
    server = start("server", "run", "--state", config / "state.toml", "--logs", "json")
    assert server.stdout is not None
    lines = iter(server.stdout.readline, "")
    address = next(json.loads(line)["address"] for line in lines if '"started"' in line)
    reader = threading.Thread(target=lambda: list(lines), daemon=True)
    reader.start()
    clients = []
    for number in range(2):
        SecretKey.generate().save(tmp_path / f"{number}.key")
        train = ("client", "train", "--run-id", "local-testnet", "--server-addr", address, "--base", config)
        files = ("-i", tmp_path / f"{number}.key", "--events-file", tmp_path / f"{number}.jsonl", "--cache-dir", tmp_path)
        clients.append(start(*train, *files, "--logs", "none"))
    for number, client in enumerate(clients):
        _, complained = client.communicate(timeout=240)
        assert client.returncode == 1, complained
        assert re.fullmatch(
            r"Error: step \d+ was not trained: the data plugin Failing \(failing-plugin 0\.3\) gave 2 sequences where 3 were "
            r"asked for; it cannot be trained on; 5 shares in a row have failed, so this client stops: mend the plugin or its "
            r"settings, then start the client again\n",
            complained,
        )
        lines_told = (tmp_path / f"{number}.jsonl").read_text().splitlines()
        told = [parsed[1] for line in lines_told if (parsed := from_json(line)) is not None]
        assert [event.why for event in told if isinstance(event, Dropped) and event.why != "failed"] == []


@pytest.mark.soak  # the data plugin below is tested each time
def test_an_optimizer_that_can_apply_nothing_ends_the_run_with_one_sentence(
    site: Path, start: Started, local_testnet: LocalTestnet, free_port: Callable[[], int], tmp_path: Path
) -> None:
    """Rounds without results followed, and then silence."""
    config = local_testnet(**SHORT)
    choose(config / "state.toml", "optimizer")
    install(site, "optimizer", OPTIMIZER)
    process = start(
        *("testnet", "start", "--num-clients", 2, "--config-path", config, "--server-port", free_port()),
        *("--out", tmp_path / "out", "--time-limit", 200, "--logs", "none"),
    )
    _, complained = process.communicate(timeout=280)
    assert process.returncode == 1, complained
    assert re.search(
        r"^Error: client-\d ended without success: the results of step 1 were not applied: the optimizer plugin Failing "
        r"\(failing-plugin 0\.3\) failed with IndexError: list index out of range \(failing_plugin\.py, line \d+\); no other "
        r"member could apply them either, so the run cannot go on and this client stops: mend the plugin or its settings, then "
        r"start the client again$",
        complained,
        re.MULTILINE,
    ), complained
    assert "Traceback" not in complained
