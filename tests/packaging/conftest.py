"""Wheels of every distribution, and a fresh environment that has them and not this repository: made once in a test run."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from fork_server import ForkServer
from live_run import fork_server

__all__ = ["fork_server"]  # a fixture

REPOSITORY = Path(__file__).parents[2]
FOLDERS = [REPOSITORY, *sorted(path.parent for path in REPOSITORY.glob("plugins/*/pyproject.toml"))]


MadeOnce = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """A function that returns a folder of a name, filled by another function: by the first worker of this test run that asks."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder(name: str, fill: Callable[[Path], None]) -> Path:
        made, done = shared / name, shared / f"{name}.done"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(made, ignore_errors=True)  # of a worker that failed
                made.mkdir()
                fill(made)
                done.touch()
        return made

    return folder


def build_system(folder: Path) -> object:
    """What a distribution says of how it is built."""
    return tomllib.loads((folder / "pyproject.toml").read_text())["build-system"]


@pytest.fixture(scope="session")
def wheels(made_once: MadeOnce) -> list[Path]:
    """A wheel of psyche-core and of each plugin; or those that lie in folder RELEASE already.

    The core's is built as `make build` does. Plugins name the same build backend, which makes theirs here, without two processes
    for each.
    """
    if release := os.environ.get("RELEASE"):
        return sorted((REPOSITORY / release).glob("*.whl"))

    def build(out: Path) -> None:
        core, *plugins = FOLDERS
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, core)
        for folder in plugins:
            assert build_system(folder) == build_system(core)
            assert [*WheelBuilder(str(folder)).build(directory=str(out))]

    return sorted(made_once("wheels", build).glob("*.whl"))


@pytest.fixture(scope="session")
def fresh_environment(wheels: list[Path], made_once: MadeOnce) -> Path:
    """The bin folder of an environment with the wheels installed.

    What they depend on is lent from this environment by links, one each, so that nothing of the repository (editable installs,
    their metadata) comes along and nothing has to be downloaded.
    """

    def fill(base: Path) -> None:
        environment = base / "venv"
        venv.create(environment, with_pip=False, symlinks=True)
        python = environment / "bin" / "python"
        run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", *wheels)

        lent = base / "lent"
        lent.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if "psyche" not in entry.name.lower() and entry.suffix != ".pth":
                (lent / entry.name).symlink_to(entry)
        (own,) = environment.glob("lib/python*/site-packages")
        (own / "lent.pth").write_text(f"{lent}\n")

    return made_once("fresh", fill) / "venv" / "bin"


class Installed:
    """Projects of plugins that are installed together into a folder beside this environment, without an index.

    folders: each project's, by name. site: where they are installed.
    """

    def __init__(self, folders: Mapping[str, Path], site: Path, forks: ForkServer) -> None:
        self.folders = dict(folders)
        self.site = site
        self._forks = forks

    def run(self, name: str, module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """`python -m MODULE ARGUMENTS` in a project's folder, with the plugins installed; forked, see fork_server.py."""
        environment = {**os.environ, "PYTHONPATH": str(self.site), "OMP_NUM_THREADS": "1"}
        return self._forks.run([module, *map(str, arguments)], cwd=self.folders[name], env=environment, timeout=300)


def install(site: Path, folders: Iterable[Path]) -> None:
    """Install projects into a folder."""
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", site)
    run(sys.executable, "-m", "pip", "install", *options, *folders)


def run(*command: object) -> None:
    """Run to the end; a failure shows what was printed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
