"""A folder for decoders that read files, gone with the process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path


def scratch_folder() -> Path:
    """A new folder."""
    folder = Path(tempfile.mkdtemp(prefix="psyche-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
