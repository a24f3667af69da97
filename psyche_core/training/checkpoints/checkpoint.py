"""Where checkpoints are stored: `{run_id}-step{step}` in one folder. The newest few are kept, each with its manifest.

Only checkpoints of epoch ends count towards that number, because a run that goes back goes back to one of these. A checkpoint
saved in mid-epoch is useful only for the next start: it replaces none of them, and is deleted when a newer one is there. A
checkpoint of a history that the run has left gets a longer name, and is then neither counted nor deleted.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from psyche_core.errors import ModelError
from psyche_core.storage.folders import remove_partial, whole_folder
from psyche_core.training.checkpoints.manifest import CheckpointManifest, Facts, read_manifest, write_manifest

_INSIDE = "model"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def checkpoint_path(folder: Path, run_id: str, step: int) -> Path:
    """The checkpoint after `step` applied steps. Characters of the run id that are awkward in file names become `_`."""
    return folder / f"{_stem(run_id)}{step}"


def checkpoints(folder: Path, run_id: str) -> list[Path]:
    """This run's checkpoints in `folder`, oldest step first."""
    stem = _stem(run_id)
    folders = (path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else ()
    found = [path for path in folders if path.name.startswith(stem) and path.name.removeprefix(stem).isdecimal()]
    return sorted(found, key=lambda path: _step(path, run_id))


def keep_last(folder: Path, run_id: str, count: int) -> list[Path]:
    """Delete this run's checkpoints but the `count` newest of epochs' ends, and one in mid-epoch if that is the newest of all.

    Returns the deleted ones, oldest first. Raises ModelError.
    """
    if count < 1:
        message = f"at least one checkpoint must be kept, got {count}"
        raise ValueError(message)

    found = checkpoints(folder, run_id)
    kept = {*[path for path in found if not _in_mid_epoch(path)][-count:], *found[-1:]}
    old = [path for path in found if path not in kept]
    for path in old:
        try:
            shutil.rmtree(path)
        except OSError as error:
            message = f"cannot delete the old checkpoint {path}: {error.strerror}"
            raise ModelError(message) from error
    return old


def remove_between(folder: Path, run_id: str, *, after: int, before: int) -> None:
    """Delete this run's checkpoints in mid-epoch of later steps than `after` and earlier ones than `before`. Raises OSError."""
    for path in checkpoints(folder, run_id):
        if after < _step(path, run_id) < before and _in_mid_epoch(path):
            shutil.rmtree(path)


def remove_leftovers(folder: Path, run_id: str) -> None:
    """Delete checkpoints of this run that killed processes left half written; no other process may be at them."""
    remove_partial(folder, _stem(run_id))


def set_aside(
    folder: Path, run_id: str, *, above: int, trusted: Callable[[CheckpointManifest], bool] = lambda _: True
) -> list[Path]:
    """Rename this run's checkpoints of later steps than `above` to `{name}-abandoned`; their new paths, oldest step first.

    above: the last step that the run can have, after it went back. trusted: see `origin.belongs`; those it refuses are renamed
    too, whatever their step. Raises ModelError.
    """
    renamed: list[Path] = []
    for path in checkpoints(folder, run_id):
        if _step(path, run_id) <= above and _is_trusted(path, trusted):
            continue

        target = abandoned_name(path)
        try:
            path.rename(target)
        except OSError as error:
            message = f"cannot set aside the checkpoint {path}, which the run has left behind: {error.strerror}"
            raise ModelError(message) from error
        renamed.append(target)
    return renamed


def abandoned_name(path: Path) -> Path:
    """The first free one of `{name}-abandoned`, `{name}-abandoned-2`, …"""
    target, number = path.with_name(f"{path.name}-abandoned"), 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}-abandoned-{number}")
    return target


def _is_trusted(path: Path, trusted: Callable[[CheckpointManifest], bool]) -> bool:
    try:
        manifest = read_manifest(path)
    except ModelError:
        return True  # damaged: nothing says that it is of another history
    return manifest is None or trusted(manifest)


def _in_mid_epoch(path: Path) -> bool:
    try:
        manifest = read_manifest(path)
    except ModelError:
        return False  # damaged: what nobody can tell is not thrown away early
    return manifest is not None and manifest.mid_epoch


def _step(path: Path, run_id: str) -> int:
    return int(path.name.removeprefix(_stem(run_id)))


def _stem(run_id: str) -> str:
    return f"{name_of(run_id)}-step"


def name_of(run_id: str) -> str:
    """A run id as the names of its files begin."""
    return _UNSAFE.sub("_", run_id)


def save_checkpoint(directory: Path, facts: Facts, *, write: Callable[[Path], None]) -> None:
    """Write a checkpoint that describes itself; `directory` appears whole, its manifest included, or not at all.

    write: writes the model into a folder it makes itself. Raises ModelError.
    """
    try:
        with whole_folder(directory) as partial:
            write(partial / _INSIDE)
            for path in (partial / _INSIDE).iterdir():
                path.rename(partial / path.name)
            (partial / _INSIDE).rmdir()
            write_manifest(partial, facts)
    except OSError as error:
        message = f"cannot save the model to {directory}: {error.strerror or error}"
        raise ModelError(message) from error
