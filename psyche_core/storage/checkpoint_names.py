"""Names of checkpoints, on disk and in stores: `{run_id}-step{step}`. Each has a manifest with a fixed name."""

from __future__ import annotations

import re
from pathlib import Path

MANIFEST_FILE = "psyche.json"
"""Name of the manifest, which describes a checkpoint's content and the run to which it belongs; written last."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def checkpoint_path(folder: Path, run_id: str, step: int) -> Path:
    """Return the path of the checkpoint after step `step`. Characters of the run id that are unsafe in file names become `_`."""
    return folder / f"{stem_of(run_id)}{step}"


def checkpoints(folder: Path, run_id: str) -> list[Path]:
    """Return the paths of this run's checkpoints in `folder`, lowest step first."""
    stem = stem_of(run_id)
    folders = (path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else ()
    found = [path for path in folders if path.name.startswith(stem) and path.name.removeprefix(stem).isdecimal()]
    return sorted(found, key=lambda path: step_of(path, run_id))


def step_of(path: Path, run_id: str) -> int:
    """Return the step in the name of a checkpoint of this run."""
    return int(path.name.removeprefix(stem_of(run_id)))


def stem_of(run_id: str) -> str:
    """Return the start of the names of a run's checkpoints; their step follows."""
    return f"{name_of(run_id)}-step"


def name_of(run_id: str) -> str:
    """Return the run id as it is used at the start of file names: unsafe characters become `_`."""
    return _UNSAFE.sub("_", run_id)
