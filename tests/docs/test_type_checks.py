"""mypy checks every folder. pyright checks that everything public in the packages has types, as a user of them sees it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
TOOLS: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]
PACKAGES = ["psyche_core", *sorted(path.name for path in REPOSITORY.glob("plugins/*/psyche_*"))]
PYRIGHT = Path(sys.prefix) / "pyright" / "node_modules" / ".bin"


def test_mypy_looks_into_every_folder() -> None:
    roots = [REPOSITORY / folder for folder in TOOLS["mypy"]["mypy_path"]]
    checked = [root / name.replace(".", "/") for name in TOOLS["mypy"]["packages"] for root in roots]
    tracked = subprocess.check_output(["git", "ls-files", "*.py"], cwd=REPOSITORY, text=True).split()
    assert [name for name in tracked if not any(folder in (REPOSITORY / name).parents for folder in checked)] == []


def test_mypy_finds_what_tests_import() -> None:
    assert set(TOOLS["pytest"]["ini_options"]["pythonpath"]) <= set(TOOLS["mypy"]["mypy_path"])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("package", PACKAGES)
def test_the_whole_public_surface_has_types(package: str) -> None:
    pyright = shutil.which("pyright", path=f"{PYRIGHT}{os.pathsep}{os.environ['PATH']}")
    if pyright is None:
        pytest.skip("needs pyright in .venv/pyright, where `make setup` installs it when there is npm")

    # With --verifytypes pyright looks for packages with the first `python` of PATH, whatever --pythonpath says.
    here = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [pyright, "--verifytypes", package, "--ignoreexternal"]
    told = subprocess.run(command, cwd=REPOSITORY, env=here, capture_output=True, text=True, check=False)
    wrong = [line.strip() for line in told.stdout.splitlines() if "error:" in line]
    assert (told.returncode, wrong) == (0, []), told.stdout[-2000:]
