"""The plugins of examples/plugins: each is installed, its own tests pass, and it takes part in a training.

They are installed together into a folder beside this environment, without an index.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fork_server import PYTEST, ForkServer
from tests.packaging.conftest import Installed, MadeOnce, install

COOKBOOK = Path(__file__).parents[2] / "examples" / "plugins"
NAMES = sorted(path.parent.name for path in COOKBOOK.glob("*/pyproject.toml"))
LICENSE = (COOKBOOK.parents[1] / "LICENSE").read_text()
NOT_OFFERED = (
    "this optimizer's training cannot be replayed",
    "this optimizer takes no inner steps",
    "this optimizer has no public state",
    "redis-server is not installed; on Debian: apt install redis-server",
)
"""Why tests of what a contract leaves open are left out; nothing else may be."""

pytestmark = [pytest.mark.packaging, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cookbook(tmp_path_factory: pytest.TempPathFactory, made_once: MadeOnce, fork_server: ForkServer) -> Installed:
    def copied(place: Path) -> dict[str, Path]:
        left_out = shutil.ignore_patterns("__pycache__", ".pytest_cache", "build", "*.egg-info")
        shutil.copytree(COOKBOOK, place / "plugins", ignore=left_out)
        return {name: place / "plugins" / name for name in NAMES}

    def fill(place: Path) -> None:
        install(place / "site", copied(place).values())

    own = copied(tmp_path_factory.mktemp("cookbook"))
    return Installed(own, made_once("installed-cookbook", fill) / "site", fork_server)


def test_every_plugin_is_on_the_page() -> None:
    page = (COOKBOOK / "README.md").read_text()
    assert NAMES
    for name in NAMES:
        assert f"[`{name}`]({name}/README.md)" in page
        assert (COOKBOOK / name / "LICENSE").read_text() == LICENSE


@pytest.mark.parametrize("name", NAMES)
def test_its_own_tests_pass(cookbook: Installed, name: str) -> None:
    done = cookbook.run(name, *PYTEST, "-rs", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert [line for line in skipped if not line.endswith(NOT_OFFERED)] == []
    assert bool(skipped) == ("skipped" in done.stdout.splitlines()[-1])


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in NAMES if (COOKBOOK / name / "run").is_dir()])
def test_it_trains(cookbook: Installed, name: str) -> None:
    arguments = ("train-local", "--state", "run/state.toml", "--device", "cpu", "--logs", "json")
    done = cookbook.run(name, "psyche_core", *arguments)
    assert done.returncode == 0, done.stderr
    losses = [event["loss"] for event in map(json.loads, done.stdout.splitlines()) if event["event"] == "step_trained"]
    assert len(losses) == 40
    assert losses[-1] < losses[0] - 1.0


def test_the_tracker_keeps_a_training(cookbook: Installed, tmp_path: Path) -> None:
    arguments = ("train-local", "--state", "../data_jsonl/run/state.toml", "--device", "cpu", "--logs", "none", "--steps", "3")
    file = tmp_path / "figures.sqlite3"
    done = cookbook.run("tracker_sqlite", "psyche_core", *arguments, "--tracker", "sqlite", "--sqlite-file", file)
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(file)) as database:
        steps = [step for (step,) in database.execute("SELECT step FROM figures WHERE key = 'train/loss' ORDER BY step")]
        assert database.execute("SELECT success FROM runs").fetchall() == [(1,)]
    assert steps == [1, 2, 3]


def test_the_command_draws_a_training(cookbook: Installed, tmp_path: Path) -> None:
    """From the events that the core writes today."""
    arguments = ("train-local", "--state", "../data_jsonl/run/state.toml", "--device", "cpu", "--logs", "none", "--steps", "3")
    done = cookbook.run("command_loss_curve", "psyche_core", *arguments, "--events-file", tmp_path / "member.jsonl")
    assert done.returncode == 0, done.stderr
    done = cookbook.run("command_loss_curve", "psyche_core", "loss-curve", tmp_path, "--width", "40")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("*") == 3
    assert "1 member: " in done.stdout
    assert " in step 3; " in done.stdout
