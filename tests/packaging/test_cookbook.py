"""The plugins of examples/plugins: each is installed, its own tests pass, and it takes part in a training.

They are installed together into a folder beside this environment, without an index.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

COOKBOOK = Path(__file__).parents[2] / "examples" / "plugins"
NAMES = sorted(path.parent.name for path in COOKBOOK.glob("*/pyproject.toml"))
LICENSE = (COOKBOOK.parents[1] / "LICENSE").read_text()

pytestmark = [pytest.mark.packaging, pytest.mark.slow, pytest.mark.timeout(600)]


class Cookbook:
    """Copies of the projects, and the folder where they are installed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.site = folder / "plugins", folder / "site"
        left_out = shutil.ignore_patterns("__pycache__", ".pytest_cache", "build", "*.egg-info")
        shutil.copytree(COOKBOOK, self.folder, ignore=left_out)

    def run(self, name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """`python ARGUMENTS` in a project's folder, with the plugins installed."""
        environment = {**os.environ, "PYTHONPATH": str(self.site), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(
            command, cwd=self.folder / name, env=environment, capture_output=True, text=True, timeout=300, check=False
        )


@pytest.fixture(scope="module")
def cookbook(tmp_path_factory: pytest.TempPathFactory) -> Cookbook:
    made = Cookbook(tmp_path_factory.mktemp("cookbook"))
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", made.site)
    done = made.run(".", *install, *(made.folder / name for name in NAMES))
    assert done.returncode == 0, done.stderr
    return made


def test_every_plugin_is_on_the_page() -> None:
    page = (COOKBOOK / "README.md").read_text()
    assert NAMES
    for name in NAMES:
        assert f"[`{name}`]({name}/README.md)" in page
        assert (COOKBOOK / name / "LICENSE").read_text() == LICENSE


@pytest.mark.parametrize("name", NAMES)
def test_its_own_tests_pass(cookbook: Cookbook, name: str) -> None:
    done = cookbook.run(name, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in NAMES if (COOKBOOK / name / "run").is_dir()])
def test_it_trains(cookbook: Cookbook, name: str) -> None:
    arguments = ("train-local", "--state", "run/state.toml", "--device", "cpu", "--logs", "json")
    done = cookbook.run(name, "-m", "psyche_core", *arguments)
    assert done.returncode == 0, done.stderr
    losses = [event["loss"] for event in map(json.loads, done.stdout.splitlines()) if event["event"] == "step_trained"]
    assert len(losses) == 40
    assert losses[-1] < losses[0] - 1.0


def test_the_tracker_keeps_a_training(cookbook: Cookbook, tmp_path: Path) -> None:
    arguments = ("train-local", "--state", "../data_jsonl/run/state.toml", "--device", "cpu", "--logs", "none", "--steps", "3")
    file = tmp_path / "figures.sqlite3"
    done = cookbook.run("tracker_sqlite", "-m", "psyche_core", *arguments, "--tracker", "sqlite", "--sqlite-file", file)
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(file)) as database:
        steps = [step for (step,) in database.execute("SELECT step FROM figures WHERE key = 'train/loss' ORDER BY step")]
        assert database.execute("SELECT success FROM runs").fetchall() == [(1,)]
    assert steps == [1, 2, 3]
