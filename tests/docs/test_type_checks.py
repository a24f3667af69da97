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
PLUGINS = sorted(REPOSITORY.glob("plugins/*/psyche_*"))
PYRIGHT = Path(sys.prefix) / "pyright" / "node_modules" / ".bin"


def test_mypy_looks_into_every_folder() -> None:
    roots = [REPOSITORY / folder for folder in TOOLS["mypy"]["mypy_path"]]
    checked = {root / name.replace(".", "/") for name in TOOLS["mypy"]["packages"] for root in roots}
    tracked = subprocess.check_output(["git", "ls-files", "*.py"], cwd=REPOSITORY, text=True).split()
    copies = [path for path in map(Path, tracked) if path.name == "hatch_build.py"]  # of tools/wheel_man_pages.py
    assert [name for name in tracked if Path(name) not in copies and checked.isdisjoint((REPOSITORY / name).parents)] == []


def test_mypy_finds_what_tests_import() -> None:
    assert set(TOOLS["pytest"]["ini_options"]["pythonpath"]) <= set(TOOLS["mypy"]["mypy_path"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_everything_public_in_the_core_has_types() -> None:
    assert untyped("psyche_core") == []


@pytest.mark.soak  # mypy reads plugins each time
@pytest.mark.timeout(900)
def test_everything_public_in_plugins_has_types(tmp_path: Path) -> None:
    """All plugins in one go, as parts of one package, so that what they import is read once."""
    together = tmp_path / "together"
    together.mkdir()
    (together / "__init__.py").touch()
    (together / "py.typed").touch()
    for package in PLUGINS:
        assert (package / "py.typed").exists()
        (together / package.name).symlink_to(package)
    assert untyped(together.name, *(f"{together.name}.{package.name}" for package in PLUGINS), path=str(tmp_path)) == []


def untyped(package: str, *parts: str, path: str = "") -> list[str]:
    """What pyright says about a package whose public names lack types. parts: packages that it must have looked into."""
    pyright = shutil.which("pyright", path=f"{PYRIGHT}{os.pathsep}{os.environ['PATH']}")
    if pyright is None:
        pytest.skip("needs pyright in .venv/pyright, where `make setup` installs it when there is npm")

    # With --verifytypes pyright looks for packages with the first `python` of PATH, whatever --pythonpath says.
    here = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": path}
    command = [pyright, "--verifytypes", package, "--ignoreexternal"]
    told = subprocess.run(command, cwd=REPOSITORY, env=here, capture_output=True, text=True, check=False)
    assert told.returncode in (0, 1), told.stderr
    lines = [line.strip() for line in told.stdout.splitlines()]
    assert {package, *parts} <= set(lines), told.stdout[:2000]
    wrong = [line for line in lines if "error:" in line]
    return wrong or ([] if told.returncode == 0 else [told.stdout[-2000:]])
