"""Build hook: a wheel installs the manual pages of its commands, `share/man/man1/psyche-client-train.1`, made as it is built.

They are written by the program that is being built (`psyche man --dir`), so they are those of its commands. Other plugins that
are installed where it is built count for nothing: the wheel is the same everywhere. A plugin's wheel has the pages that psyche
has with that plugin and not without it. An editable install has none, since its commands change.

A plugin's pages need psyche-core where its wheel is built. Where a build is isolated from it, the wheel has no pages, with a
warning; releases are built without isolation. This file is the same for all: `tools/wheel_man_pages.py` for psyche-core,
`hatch_build.py` in a plugin's folder.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TARGET = "share/man/man1"
CORE = "psyche-core"
PROGRAM = """
import sys
folder, *roots = sys.argv[1:]
sys.path[:0] = roots  # pip's isolation takes paths of editable installs out of PYTHONPATH
from psyche_core.cli import main
main(["man", "--dir", folder])
"""
BUILD_SECONDS = 300.0


class ManPagesHook(BuildHookInterface[Any]):
    """Adds the pages to the data files of a wheel."""

    PLUGIN_NAME = "custom"
    _folder: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the pages. Raises RuntimeError if the program cannot run here."""
        if version == "editable":
            return
        name = self.metadata.name
        if name != CORE and importlib.util.find_spec("psyche_core") is None:
            self.app.display_warning(f"{name} is built without its manual pages, which need {CORE}; `psyche man` prints them")
            return

        self._folder = Path(tempfile.mkdtemp(prefix="man-pages-"))
        pages = self._folder / "pages"
        if name == CORE:
            write_pages(pages, self.root, only=CORE)
        else:
            known = self._folder / "known"
            write_metadata(self._folder, name, self.metadata.version, self.metadata.core.entry_points)
            write_pages(pages, str(self._folder), self.root, only=name)
            write_pages(known, only=CORE)
            for page in known.iterdir():
                (pages / page.name).unlink(missing_ok=True)
        found = sorted(pages.iterdir())
        if not found:
            message = f"{name} has commands, and no manual page of them could be made: its dependencies must be installed first"
            raise RuntimeError(message)
        for page in found:
            build_data["shared_data"][str(page)] = f"{TARGET}/{page.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  # hatchling's
        """Remove what the wheel holds now."""
        if self._folder is not None:
            shutil.rmtree(self._folder)


def write_metadata(folder: Path, name: str, version: str, entry_points: Mapping[str, Mapping[str, str]]) -> None:
    """Write what an installed distribution says of itself, so that psyche finds the plugin that is being built."""
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    lines = []
    for group, points in entry_points.items():
        lines += [f"[{group}]", *(f"{point} = {target}" for point, target in points.items()), ""]
    (place / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def write_pages(folder: Path, *roots: str, only: str) -> None:
    """Write the pages of all commands that psyche has with no other plugins than those of a distribution.

    roots: where sources and metadata are that are not installed.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PSYCHE_")}
    environment |= {"PSYCHE_PLUGINS": only, "PYTHONDONTWRITEBYTECODE": "1"}
    folder.mkdir()
    done = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", PROGRAM, str(folder), *roots],
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        env=environment,
        cwd=folder,
        check=False,
    )
    if done.returncode:
        message = (
            f"cannot make the manual pages of {only}; without build isolation its dependencies must be installed first: "
            f"{done.stderr.strip()[-500:]}"
        )
        raise RuntimeError(message)
