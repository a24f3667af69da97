"""Wheels of every distribution, and a fresh environment that has them and not this repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
FOLDERS = [REPOSITORY, *sorted(path.parent for path in REPOSITORY.glob("plugins/*/pyproject.toml"))]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A wheel of psyche-core and of each plugin, built as `make build` does; or those that lie in folder RELEASE already."""
    if release := os.environ.get("RELEASE"):
        return sorted((REPOSITORY / release).glob("*.whl"))
    out = tmp_path_factory.mktemp("wheels")
    for folder in FOLDERS:
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, folder)
    return sorted(out.glob("*.whl"))


@pytest.fixture(scope="session")
def fresh_environment(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheels installed.

    What they depend on is lent from this environment by links, one each, so that nothing of the repository (editable installs,
    their metadata) comes along and nothing has to be downloaded.
    """
    base = tmp_path_factory.mktemp("fresh")
    environment = base / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    binaries = environment / "bin"
    run(sys.executable, "-m", "pip", "--python", binaries / "python", "install", "--no-deps", "--no-index", *wheels)

    lent = base / "lent"
    lent.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "psyche" not in entry.name.lower() and entry.suffix != ".pth":
            (lent / entry.name).symlink_to(entry)
    (own,) = environment.glob("lib/python*/site-packages")
    (own / "lent.pth").write_text(f"{lent}\n")
    return binaries


def run(*command: object) -> None:
    """Run to the end; a failure shows what was printed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
