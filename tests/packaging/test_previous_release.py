"""Plugins of the previous release work with the new core: beside it they pass `psyche plugins check`, training included.

PREVIOUS names the folder of their wheels (`make release-check PREVIOUS=previous/`); without it nothing is tested here. The policy
is in docs/plugins/policy.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from psyche_core.hookspecs import GROUP
from psyche_core.plugins.directory import entry_of

REPOSITORY = Path(__file__).parents[2]
FOLDER = os.environ.get("PREVIOUS", "")
CORE = "psyche_core"

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.quic,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not FOLDER, reason="PREVIOUS names no folder with the wheels of the previous release"),
]


@dataclass(frozen=True, slots=True)
class Earlier:
    """A plugin in a wheel of the previous release."""

    wheel: Path
    entry_point: str

    @property
    def distribution(self) -> str:
        return self.wheel.name.split("-")[0].replace("_", "-")

    @property
    def version(self) -> str:
        return self.wheel.name.split("-")[1]


def earlier(folder: Path) -> Iterator[Earlier]:
    """The plugins of the wheels in a folder, without the core's own."""
    for wheel in sorted(folder.glob("*.whl")):
        if wheel.name.startswith(f"{CORE}-"):
            continue
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if re.search(r"\.dist-info/entry_points\.txt$", name)]
            entry_points = ConfigParser(delimiters=("=",))
            entry_points.optionxform = str  # type: ignore[assignment,method-assign]  # names are case-sensitive
            for name in names:
                entry_points.read_string(archive.read(name).decode())
        registered: list[str] = entry_points.options(GROUP) if entry_points.has_section(GROUP) else []
        for entry_point in registered:
            yield Earlier(wheel, entry_point)


def announced(distribution: str, changes: Path) -> bool:
    """Whether the change log says what the plugin's author must do. changes: the folder of its fragments."""
    return any(distribution in fragment.read_text() for fragment in changes.glob("*.breaking*.md"))


PLUGINS = list(earlier(REPOSITORY / FOLDER)) if FOLDER else []


@pytest.fixture(scope="session")
def with_previous(fresh_environment: Path) -> Path:
    """The bin folder of an environment with the new core and the previous plugins, whatever bounds these have."""
    wheels = sorted({plugin.wheel for plugin in PLUGINS})
    install = (sys.executable, "-m", "pip", "--python", fresh_environment / "python", "install", "--no-index", "--no-deps")
    words = [str(word) for word in (*install, "--force-reinstall", *wheels)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return fresh_environment


def psyche(binaries: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden and not name.startswith("PSYCHE_")}
    command = [str(binaries / "psyche"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=800, cwd=cwd, env=environment, check=False)


def test_the_folder_has_plugins() -> None:
    assert PLUGINS, f"no wheel in {FOLDER} has plugins"


@pytest.mark.parametrize("plugin", PLUGINS, ids=[f"{plugin.distribution}:{plugin.entry_point}" for plugin in PLUGINS])
def test_a_previous_plugin_passes_the_check_of_the_new_core(with_previous: Path, tmp_path: Path, plugin: Earlier) -> None:
    name = f"{plugin.distribution}:{plugin.entry_point}"
    kind, _, plain = plugin.entry_point.partition(".")
    entry = entry_of(kind, plain)
    settings = ("--settings", json.dumps(dict(entry.check))) if entry is not None and entry.check else ()
    done = psyche(with_previous, "plugins", "check", name, "--json", *settings, cwd=tmp_path)
    told: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"ok": False, "steps": [], "origin": done.stderr}
    failed = [step for step in told["steps"] if step["outcome"] == "failed"]
    if not told["ok"] and announced(plugin.distribution, REPOSITORY / "changelog.d"):
        pytest.xfail(f"the change log says what its author must do: {failed}")
    assert told["ok"], failed or told["origin"]
    assert told["origin"] == f"{plugin.distribution} {plugin.version}"
