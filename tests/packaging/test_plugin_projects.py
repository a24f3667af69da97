"""One project of every kind that `psyche plugins new` offers: it is installed, its own tests pass, and it trains.

The projects are installed together into a folder beside this environment, without an index.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fork_server import PYTEST, ForkServer
from psyche_core.plugins.projects import KINDS, make_project
from psyche_core.wire.signing import SecretKey
from tests.packaging.conftest import Installed, MadeOnce, install

pytestmark = [pytest.mark.packaging, pytest.mark.slow, pytest.mark.timeout(600)]

NAMES = {
    "optimizer": "MajorityVote",
    "data": "Texts",
    "model": "TinyRnn",
    "tracker": "lines",
    "backend": "shelf",
    "transport": "wires",
    "sharding": "copies",
    "relay": "hop",
    "store": "shelf",
    "command": "count-events",
}
TRAINED = ("optimizer", "data", "model", "sharding")
NOT_TRAINED = ("command", "relay", "store")
KNOWN_TO_AUTHORS = ("data", "tracker", "backend", "transport", "sharding", "relay", "store")
"""Kinds whose conformance needs what only the author knows."""


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory, made_once: MadeOnce, fork_server: ForkServer) -> Installed:
    def fill(place: Path) -> None:
        install(place / "site", [make_project(kind, NAMES[kind], out=place / kind) for kind in KINDS])

    own = tmp_path_factory.mktemp("projects")
    folders = {kind: make_project(kind, NAMES[kind], out=own / kind) for kind in KINDS}
    return Installed(folders, made_once("installed-projects", fill) / "site", fork_server)


def test_every_kind_is_there() -> None:
    assert set(KINDS) == set(NAMES)


def only_in_soak(*kinds: str) -> list[Any]:
    return [pytest.param(kind, marks=pytest.mark.soak if kind in kinds else ()) for kind in KINDS]


# The tutorial runs the optimizer's. Those of sharding start ranks; the test below runs the others.
@pytest.mark.parametrize("kind", only_in_soak("optimizer", "sharding"))
def test_its_own_tests_pass(projects: Installed, kind: str) -> None:
    done = projects.run(kind, *PYTEST, "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_the_sharding_engine_s_own_tests_pass_but_for_those_with_ranks(projects: Installed) -> None:
    done = projects.run("sharding", *PYTEST, "-p", "no:cacheprovider", "-k", "not TestCopies")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^[1-9]\d* passed, [1-9]\d* deselected", done.stdout, flags=re.MULTILINE), done.stdout


# `check` runs the conformance of AdamW each time (test_plugin_check.py), and each kind's own tests above are the same.
@pytest.mark.parametrize("kind", only_in_soak("backend", "transport", "sharding", "optimizer", "model"))
def test_its_check_finds_nothing(projects: Installed, kind: str) -> None:
    options = ("--json", "--no-training", *(("--model-config", "run/model/config.json") if kind == "model" else ()))
    done = projects.run(kind, "psyche_core", "plugins", "check", f"{kind}.{NAMES[kind]}", *options)
    assert done.returncode == 0, done.stdout
    outcomes = {step["name"]: step["outcome"] for step in json.loads(done.stdout)["steps"]}
    assert set(outcomes.values()) <= {"ok", "skipped"}
    assert outcomes["conformance"] == ("skipped" if kind in KNOWN_TO_AUTHORS else "ok")


@pytest.mark.quic
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind == "data" else pytest.mark.soak) for kind in KINDS])
def test_its_check_trains(projects: Installed, kind: str) -> None:
    """One kind each time; `make soak` tries them all. Relative paths start in the current folder, and nothing stays there."""
    before = sorted(projects.folders[kind].rglob("*"))
    options = {"model": ("--model-config", "run/model/config.json"), "data": ("--settings", '{"location": "run/texts"}')}
    given = ("--json", "--no-conformance", *options.get(kind, ()))
    done = projects.run(kind, "psyche_core", "plugins", "check", f"{kind}.{NAMES[kind]}", *given)
    assert done.returncode == 0, done.stdout
    step = json.loads(done.stdout)["steps"][-1]
    assert (step["name"], step["outcome"]) == ("training", "skipped" if kind in NOT_TRAINED else "ok")
    if kind not in NOT_TRAINED:
        assert "trained 6 steps" in step["sentence"]
    assert [path for path in sorted(projects.folders[kind].rglob("*")) if "__pycache__" not in str(path)] == [
        path for path in before if "__pycache__" not in str(path)
    ]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.soak if kind == "sharding" else ()) for kind in TRAINED])
def test_it_trains(projects: Installed, kind: str) -> None:
    options = ("--data-parallelism", "2", "--sharding", "copies") if kind == "sharding" else ()
    command = ("train-local", "--state", "run/state.toml", "--device", "cpu", "--logs", "json", *options)
    done = projects.run(kind, "psyche_core", *command)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "step_trained"]
    assert len(losses) == 40
    assert losses[-1] < losses[0] - 1.0


@pytest.mark.soak
def test_a_backend_and_a_transport_train_together(projects: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server and two members, each a process, that know each other by nothing but the two plugins."""
    monkeypatch.setenv("PSYCHE_DISABLE_PLUGINS", "transport.quic")  # nobody can meet in another way
    command = ("testnet", "start", "--config-path", "run", "--num-clients", "2", "--backend", "shelf", "--transport", "wires")
    required = ("--require-steps", "40", "--require-epochs", "2", "--time-limit", "240", "--logs", "none")
    done = projects.run("backend", "psyche_core", *command, "--out", tmp_path / "out", *required)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["identical"]
    assert all(client["losses"][-1][1] < client["losses"][0][1] - 1.0 for client in report["clients"])


@pytest.mark.soak
@pytest.mark.quic
def test_a_server_needs_neither_the_plugin_nor_torch(projects: Installed, tmp_path: Path) -> None:
    """The server knows nothing of the optimizer and cannot import torch; the member has both, and the run ends well."""
    blocked = tmp_path / "blocked" / "torch"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text('raise ModuleNotFoundError("No module named torch", name="torch")')
    command = ("server", "run", "--state", "run/state.toml", "--server-port", "0", "--logs", "json")
    environment = {**os.environ, "PYTHONPATH": str(blocked.parent)}
    key = tmp_path / "me.key"
    SecretKey.generate().save(key)
    with subprocess.Popen(
        [sys.executable, "-m", "psyche_core", *command],
        cwd=projects.folders["optimizer"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            started, problem = (json.loads(server.stdout.readline()) for _ in range(2))
            assert "no optimizer plugin is named MajorityVote" in problem["message"]
            address = ("--server-addr", started["address"], "--run-id", started["run_id"], "-i", key)
            place = ("--bind-p2p-interface", "127.0.0.1", "--device", "cpu", "--base", "run", "--logs", "json")
            done = projects.run("optimizer", "psyche_core", "client", "train", *address, *place)
            assert done.returncode == 0, done.stderr
            told = [json.loads(line) for line in server.stdout]
        finally:
            server.kill()
    assert told[-1]["reason"] == "the run finished after 40 steps"


def test_a_server_runs_the_relay_that_is_named(projects: Installed) -> None:
    command = ("server", "run", "--state", "run/state.toml", "--server-port", "0", "--logs", "json")
    relay = ("--with-relay", "--relay", NAMES["relay"], "--relay-port", "0")
    with subprocess.Popen(
        [sys.executable, "-m", "psyche_core", *command, *relay],
        cwd=projects.folders["optimizer"],
        env={**os.environ, "PYTHONPATH": str(projects.site)},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            told = (json.loads(line) for line in server.stdout)
            started = next(event for event in told if event["event"] == "relay_started")
        finally:
            server.kill()
    assert started["url"].startswith("tcp://127.0.0.1:")


def test_a_tracker_and_a_command_are_used(projects: Installed, tmp_path: Path) -> None:
    arguments = ("train-local", "--state", "run/state.toml", "--device", "cpu", "--logs", "none", "--steps", "3")
    figures = ("--tracker", "lines", "--lines-dir", tmp_path / "figures", "--events-file", tmp_path / "events.jsonl")
    done = projects.run("optimizer", "psyche_core", *arguments, *figures)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "figures").glob("*.jsonl")
    kinds = [json.loads(line)["kind"] for line in file.read_text().splitlines()]
    assert kinds[0] == "run"
    assert kinds[-1] == "end"

    counted = projects.run("command", "psyche_core", "count-events", tmp_path / "events.jsonl")
    assert ["3", "step_trained"] in [line.split() for line in counted.stdout.splitlines()]
