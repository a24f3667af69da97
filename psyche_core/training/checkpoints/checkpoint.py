"""A member's own checkpoints in a folder: saved, kept (the newest few), renamed or deleted. Their names: `checkpoint_names`.

Only checkpoints of epoch ends count towards that number, because a run can only go back to one of these. A checkpoint saved in
mid-epoch is useful only for the next start: it does not replace a checkpoint of an epoch end, and is deleted when there is a
newer checkpoint. The checkpoints with which the run's two journals begin stay while these journals do, because a journal without
its base restores nothing. A checkpoint of a discarded history, or a damaged one, gets a longer name; after that it is not counted
and not deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from psyche_core.errors import ModelError
from psyche_core.storage.checkpoint_names import checkpoint_path, checkpoints, stem_of, step_of
from psyche_core.storage.disk_errors import disk_error_in
from psyche_core.storage.folders import remove_partial, whole_folder, write_inside
from psyche_core.training.checkpoints.journal.file import header_in
from psyche_core.training.checkpoints.journal.lock import earlier_path, journal_path
from psyche_core.training.checkpoints.manifest import (
    CheckpointFacts,
    CheckpointManifest,
    read_manifest,
    step_and_digest,
    write_manifest,
)
from psyche_core.training.checkpoints.quarantine_names import ABANDONED, abandoned_name, damaged_name, damaged_of


def keep_last(folder: Path, run_id: str, count: int) -> list[Path]:
    """Delete this run's old checkpoints.

    The `count` newest checkpoints of epoch ends are kept, the newest checkpoint of all even if it is in mid-epoch, and beside
    them the bases of the present journal and of the one before it. Returns the deleted paths, oldest first. Raises ModelError,
    and ValueError for a count below 1.
    """
    if count < 1:
        message = f"at least one checkpoint must be kept, got {count}"
        raise ValueError(message)

    found, bases = checkpoints(folder, run_id), _bases(folder, run_id)
    kept = {*[path for path in found if not _in_mid_epoch(path)][-count:], *found[-1:]}
    kept |= {path for path in found if step_of(path, run_id) in bases and _is_base(path, bases)}
    old = [path for path in found if path not in kept]
    for path in old:
        try:
            shutil.rmtree(path)
        except OSError as error:
            message = f"cannot delete the old checkpoint {path}: {error.strerror}"
            raise ModelError(message) from error
    return old


def _bases(folder: Path, run_id: str) -> dict[int, set[bytes]]:
    """Return full digests (32 bytes), by step, of the models with which this run's journals begin."""
    present = journal_path(folder, run_id)
    found: dict[int, set[bytes]] = {}
    for path in (present, earlier_path(present)):
        header = header_in(path)
        if header is not None:
            found.setdefault(header.base_step, set()).add(header.base_digest)
    return found


def _is_base(path: Path, bases: dict[int, set[bytes]]) -> bool:
    manifest = _manifest_in(path)
    if manifest is None:
        return True  # nothing shows that it is another model of that step
    step, digest = step_and_digest(manifest)
    return digest in bases.get(step, ())


def remove_between(folder: Path, run_id: str, *, after: int, before: int, instance: bytes) -> None:
    """Delete this run's mid-epoch checkpoints of the steps between `after` and `before`, both exclusive. Raises OSError.

    instance: of the run (32 bytes). Checkpoints of another run of this name stay.
    """
    for path in checkpoints(folder, run_id):
        if after < step_of(path, run_id) < before and _in_mid_epoch(path) and not _of_another_run(path, instance):
            shutil.rmtree(path)


def remove_leftovers(folder: Path, run_id: str) -> None:
    """Delete unfinished checkpoints of this run that killed processes left. No other process may be using them."""
    remove_partial(folder, stem_of(run_id))


def set_aside(
    folder: Path,
    run_id: str,
    *,
    above: int,
    trusted: Callable[[CheckpointManifest], bool] = lambda _: True,
    signed: Callable[[CheckpointManifest], bool] = lambda _: False,
) -> list[Path]:
    """Rename this run's checkpoints of later steps than `above` to `{name}-abandoned`. Returns the new paths, lowest step first.

    above: the last step that the run can have, after it went back. trusted: see `origin.belongs`; checkpoints for which it
    returns False are also renamed, whatever their step. signed: those for which it returns True stay, whatever their step.
    Raises ModelError.
    """
    renamed: list[Path] = []
    for path in checkpoints(folder, run_id):
        manifest = _manifest_in(path)  # None: damaged or without one, so nothing shows that it belongs to another history
        if manifest is not None and signed(manifest):
            continue
        if step_of(path, run_id) <= above and (manifest is None or trusted(manifest)):
            continue

        renamed.append(
            _renamed(
                path, abandoned_name(path), f"cannot rename the checkpoint {path}, which is no longer part of the run's history"
            )
        )
    return renamed


def set_aside_sentence(path: Path, *, above: int, instance: bytes) -> str:
    """One sentence for people about a checkpoint that `set_aside` renamed. path: its new one. instance: of the run (32 bytes)."""
    before = path.with_name(path.name.partition(ABANDONED)[0])
    why = f"of a history that the run, which is at step {above}, has left"
    if _of_another_run(path, instance):
        why = "of another run of this name"
    return f"the checkpoint {before} is not used: it is {why}; it was renamed to {path.name}"


def take_back(folder: Path, run_id: str, *, wanted: Callable[[CheckpointManifest], bool]) -> list[Path]:
    """Restore the names of checkpoints that were set aside but belong to the run's history.

    This happens if the coordinator, or a provider that answers for it, showed an older state or another run for a while. If
    another checkpoint has the name now and is not wanted itself, it is set aside. wanted: whether a checkpoint belongs to the
    history. Returns the new paths. Raises ModelError.
    """
    renamed: list[Path] = []
    for path in sorted(folder.glob(f"{stem_of(run_id)}*{ABANDONED}*")):
        manifest = _manifest_in(path)
        if manifest is None or manifest.run_id != run_id or not wanted(manifest):
            continue

        target, problem = checkpoint_path(folder, run_id, manifest.step), f"cannot restore the name of the checkpoint {path}"
        if target.exists():
            there = _manifest_in(target)
            if there is None or wanted(there):
                continue
            _renamed(target, abandoned_name(target), problem)
        renamed.append(_renamed(path, target, problem))
    return renamed


def _renamed(path: Path, target: Path, problem: str) -> Path:
    """Rename a folder; returns its new path. problem: first part of the message of the ModelError for a disk error."""
    try:
        return path.rename(target)
    except OSError as error:
        message = f"{problem}: {error.strerror}"
        raise ModelError(message) from error


def set_damaged_aside(path: Path) -> Path:
    """Rename a checkpoint whose files are damaged to `{name}-damaged`, so that it does not count as one of those that are kept.

    Returns the new path. Raises ModelError.
    """
    return _renamed(path, damaged_name(path), f"cannot rename the damaged checkpoint {path}")


def why_unusable(folder: Path, run_id: str, step: int) -> str:
    """Return, as a clause, why the checkpoint of a step was not loaded although a journal begins with it."""
    path = checkpoint_path(folder, run_id, step)
    damaged = damaged_of(path)
    if damaged:
        return f"the checkpoint of step {step} is damaged (it is kept as {damaged[-1].name})"
    return f"the checkpoint of step {step} {'cannot be used' if path.exists() else 'is missing'}"


def _manifest_in(path: Path) -> CheckpointManifest | None:
    """Return the manifest in a folder; None if there is none that can be read."""
    try:
        return read_manifest(path)
    except ModelError:
        return None


def _of_another_run(path: Path, instance: bytes) -> bool:
    manifest = _manifest_in(path)
    return manifest is not None and manifest.instance not in (None, instance.hex())


def _in_mid_epoch(path: Path) -> bool:
    try:
        manifest = read_manifest(path)
    except ModelError:
        return False  # damaged: unknown, so it is not deleted early
    return manifest is not None and manifest.mid_epoch


def save_checkpoint(directory: Path, facts: CheckpointFacts, *, write: Callable[[Path], None]) -> Path | None:
    """Write a checkpoint with its manifest. `directory` appears complete or not at all.

    facts: for the manifest. write: writes the model into a folder that it creates itself. If both are of a run, an older
    checkpoint of this name but another model is renamed to `{name}-abandoned`, because its history may return. Returns its new
    path, None if there was none. Raises ModelError.
    """
    renamed = None
    try:
        with whole_folder(directory) as partial:
            write_inside(partial, write)
            write_manifest(partial, facts)
            there = _manifest_in(directory)
            if there is not None and facts.instance and (there.instance, there.digest) != _names(facts):
                renamed = directory.rename(abandoned_name(directory))
    except (OSError, ModelError) as error:
        reason = disk_error_in(error)
        if reason is None and isinstance(error, ModelError):
            raise

        message = f"cannot save the model to {directory}: {reason or error}"
        raise ModelError(message) from error

    return renamed


def _names(facts: CheckpointFacts) -> tuple[str | None, str]:
    """Return instance and digest of a model, as its manifest has them."""
    return facts.instance.hex() or None, facts.digest.hex()
