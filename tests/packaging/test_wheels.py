"""What is in the wheels, and that they work outside this repository."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from configparser import ConfigParser
from email import message_from_string
from pathlib import Path

import pytest

from psyche_core import __version__
from tests.conftest import LocalTestnet

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(400)]

REPOSITORY = Path(__file__).parents[2]


def content(wheel: Path, pattern: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if re.search(pattern, name)]
        return archive.read(name).decode()


def call(binaries: Path, *arguments: object, cwd: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """`psyche ARGUMENTS` of that environment, away from the repository."""
    return run([binaries / "psyche", *arguments], cwd=cwd, timeout=timeout)


def run(command: Sequence[object], *, cwd: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden and not name.startswith("PSYCHE_")}
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=environment, check=False)


def test_there_is_a_wheel_of_every_distribution(wheels: list[Path]) -> None:
    projects = [REPOSITORY / "pyproject.toml", *REPOSITORY.glob("plugins/*/pyproject.toml")]
    names = {tomllib.loads(path.read_text())["project"]["name"].replace("-", "_") for path in projects}
    assert {wheel.name.split("-")[0] for wheel in wheels} == names
    assert all(wheel.name.endswith("-py3-none-any.whl") for wheel in wheels)


def test_wheels_hold_their_package_typed_and_nothing_else(wheels: list[Path]) -> None:
    for wheel in wheels:
        package = wheel.name.split("-")[0]
        names = zipfile.ZipFile(wheel).namelist()
        assert f"{package}/py.typed" in names, wheel.name
        strangers = [name for name in names if not name.startswith((f"{package}/", f"{package}-"))]
        assert strangers == [], wheel.name
        shipped = [name for name in names if not name.endswith(".tmpl")]  # tests of the projects that `plugins new` makes
        assert [name for name in shipped if "/tests/" in name or name.endswith(".pyc")] == []


def test_wheels_hold_every_file_of_their_package(wheels: list[Path]) -> None:
    """What lacks one may start, and fail when the file is wanted."""
    tracked = subprocess.check_output(["git", "ls-files"], cwd=REPOSITORY, text=True).splitlines()
    for wheel in wheels:
        package = wheel.name.split("-")[0]
        (folder,) = [path.parent for path in (REPOSITORY / package, *REPOSITORY.glob(f"plugins/*/{package}")) if path.is_dir()]
        files = [
            (REPOSITORY / name).relative_to(folder) for name in tracked if (REPOSITORY / name).is_relative_to(folder / package)
        ]
        assert len(files) > 3
        assert sorted({path.as_posix() for path in files} - {*zipfile.ZipFile(wheel).namelist()}) == [], wheel.name


def test_the_plugin_directory_travels_with_the_core(wheels: list[Path]) -> None:
    (core,) = (wheel for wheel in wheels if wheel.name.startswith("psyche_core-"))
    assert content(core, r"/directory\.toml$") == (REPOSITORY / "psyche_core" / "plugins" / "directory.toml").read_text()


def test_wheels_say_what_they_are(wheels: list[Path]) -> None:
    for wheel in wheels:
        metadata = message_from_string(content(wheel, r"\.dist-info/METADATA$"))
        assert metadata["Requires-Python"] == ">=3.11", wheel.name
        assert metadata["Summary"], wheel.name
        assert metadata["License-Expression"] == "Apache-2.0", wheel.name
        assert "Apache License" in content(wheel, r"\.dist-info/licenses/LICENSE$"), wheel.name
        entry_points = ConfigParser(delimiters=("=",))
        entry_points.optionxform = str  # type: ignore[assignment,method-assign]  # names are case-sensitive
        entry_points.read_string(content(wheel, r"\.dist-info/entry_points\.txt$"))
        assert entry_points["psyche.plugins"], wheel.name
        if not wheel.name.startswith("psyche_core-"):
            assert any(line.startswith("psyche-core") for line in metadata.get_all("Requires-Dist", [])), wheel.name


def test_the_installed_command_runs(fresh_environment: Path, tmp_path: Path) -> None:
    done = call(fresh_environment, "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"psyche {__version__}\n")


def test_manual_pages_of_all_commands_are_installed(fresh_environment: Path, tmp_path: Path) -> None:
    """The core's own are as psyche writes them without plugins; a plugin's wheel brings those of its commands."""
    installed = {page.name: page.read_text() for page in (fresh_environment.parent / "share" / "man" / "man1").iterdir()}
    others = [word for name in ("psyche-p2p-quic", "psyche-backend-solana") for word in ("--disable-plugin", name)]
    for folder, switches in (("core", others), ("all", [])):
        done = call(fresh_environment, *switches, "man", "--dir", tmp_path / folder, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    core = {page.name: page.read_text() for page in (tmp_path / "core").iterdir()}
    assert {"psyche.1", "psyche-client-train.1", "psyche-man.1"} <= set(core)
    everything = {page.name: page.read_text() for page in (tmp_path / "all").iterdir()}
    brought = everything.keys() - core.keys()
    assert {"psyche-relay-run.1", "psyche-run-manager-create-run.1", "psyche-solana.1", "psyche-doctor-network.1"} <= brought
    assert installed == core | {name: everything[name] for name in brought}


def test_no_two_wheels_bring_the_same_manual_page(wheels: list[Path]) -> None:
    """The one that is installed later would replace the other's."""
    held = [name for wheel in wheels for name in zipfile.ZipFile(wheel).namelist() if "/share/man/" in name]
    names = [name.rpartition("/")[2] for name in held]
    assert len(names) == len(set(names)) > 60


@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
def test_man_finds_the_pages_of_an_environment_that_is_active(fresh_environment: Path, tmp_path: Path) -> None:
    page = fresh_environment.parent / "share" / "man" / "man1" / "psyche-client-train.1"
    for more in ({"MANPATH": str(page.parents[1])}, {"PATH": f"{fresh_environment}:{os.environ['PATH']}"}):
        environment = {name: value for name, value in os.environ.items() if name != "MANPATH"} | more
        words = ["man", "--where", "psyche-client-train"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path, check=False)
        assert (done.stdout.strip(), done.returncode) == (str(page), 0), done.stderr


def test_what_the_wheels_want_is_what_they_are_tested_with(fresh_environment: Path, tmp_path: Path) -> None:
    """Bounds that the versions of this repository do not keep, between core and plugins or of theirs, would be told here."""
    command = [sys.executable, "-m", "pip", "--python", fresh_environment / "python", "check"]
    done = run(command, cwd=tmp_path, timeout=120)
    assert done.stdout, done.stderr
    assert [line for line in done.stdout.splitlines() if "psyche" in line] == []


def test_all_plugins_load_from_the_wheels(fresh_environment: Path, wheels: list[Path], tmp_path: Path) -> None:
    done = call(fresh_environment, "plugins", "list", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)
    assert [(record["name"], record["cause"]) for record in records if record["status"] != "ok"] == []
    assert {record["distribution"].replace("-", "_") for record in records} == {wheel.name.split("-")[0] for wheel in wheels}


def test_nothing_comes_from_the_repository(fresh_environment: Path, tmp_path: Path) -> None:
    script = "import psyche_core, psyche_p2p_quic, psyche_optim_distro; print(psyche_core.__file__, psyche_p2p_quic.__file__)"
    done = run([fresh_environment / "python", "-P", "-c", script], cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(file.startswith(str(fresh_environment.parent)) for file in done.stdout.split())


@pytest.mark.soak  # that all files are there and all plugins load is tried each time; `make release-check` runs this, too
@pytest.mark.e2e
@pytest.mark.quic
def test_a_run_from_the_wheels_alone(
    fresh_environment: Path, local_testnet: LocalTestnet, free_port: Callable[[], int], tmp_path: Path
) -> None:
    """Two members train with code that is compiled from the wheel, once and not by both at the same time."""
    compiled = run([fresh_environment / "python", "-P", "-m", "psyche_optim_distro.backends.numba"], cwd=tmp_path, timeout=200)
    assert compiled.returncode == 0, compiled.stderr
    run_keys = {"rounds_per_epoch": 2, "warmup_steps": 1, "global_batch_size_start": 6, "global_batch_size_end": 6}
    config = local_testnet(total_steps=4, init_min_clients=2, **run_keys)
    out = tmp_path / "out"
    arguments = ("--num-clients", 2, "--config-path", config, "--server-port", free_port(), "--out", out)
    done = call(fresh_environment, "testnet", "start", *arguments, "--require-steps", 4, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads((out / "report.json").read_text())
    assert (report["steps"], report["epochs"], report["identical"]) == (4, 2, True)
