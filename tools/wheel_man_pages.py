"""Build hook: the wheel of psyche-core installs manual pages, `share/man/man1/psyche-client-train.1`, made as it is built.

They are written by the program that is being built (`psyche man --dir`), so they are those of its commands. Plugins that are
installed where it is built count for nothing: the wheel is the same everywhere. An editable install has none, since its commands
change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TARGET = "share/man/man1"
PROGRAM = """
import sys
folder, root = sys.argv[1:]
sys.path.insert(0, root)  # pip's isolation takes paths of editable installs out of PYTHONPATH
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

        self._folder = Path(tempfile.mkdtemp(prefix="man-pages-"))
        write_pages(self._folder, root=Path(self.root))
        for page in sorted(self._folder.iterdir()):
            build_data["shared_data"][str(page)] = f"{TARGET}/{page.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  # hatchling's
        """Remove what the wheel holds now."""
        if self._folder is not None:
            shutil.rmtree(self._folder)


def write_pages(folder: Path, *, root: Path) -> None:
    """Write the pages of the commands of psyche-core, from the sources in `root`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PSYCHE_")}
    environment |= {"PSYCHE_PLUGINS": "psyche-core", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", PROGRAM, str(folder), str(root)],
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        env=environment,
        cwd=folder,
        check=False,
    )
    if done.returncode:
        message = (
            "cannot make the manual pages of psyche-core; without build isolation its dependencies must be installed first: "
            f"{done.stderr.strip()[-500:]}"
        )
        raise RuntimeError(message)
