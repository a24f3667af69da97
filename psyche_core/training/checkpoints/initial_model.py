"""Finds the model with which a member starts: its own checkpoint, the location in the run configuration, or other members.

A member's own checkpoint of the run is the first choice, under two conditions. It must not be newer than the run, which happens
if a run starts again under the same name. It must belong to the run's present history: to the state's generation, or to an epoch
end that a quorum signed. Its step tells the client which later steps are missing. If the run's model is a stored one, our own
checkpoint is used if it is newer, or if the stored one is of a later step than the run, which happens after the run went back.

If the members hold the model (P2P), a local folder with the name in the configuration is used only for how the model is built,
and nothing is downloaded, because the members have everything. Once a member has stored the model, the configuration has the name
that this member chose, and a folder of ours may have the same name by chance: then the members are asked for the description,
too. A damaged checkpoint of our own is reported, renamed and skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from psyche_core.config.run_config import Choice
from psyche_core.errors import ModelError
from psyche_core.interfaces.store import Proceed, go_on
from psyche_core.storage.checkpoint_names import MANIFEST_FILE, checkpoints
from psyche_core.storage.model_stores.interface import OpenStore
from psyche_core.storage.object_store import open_bucket
from psyche_core.training.checkpoints import sources
from psyche_core.training.checkpoints.checkpoint import set_damaged_aside
from psyche_core.training.checkpoints.manifest import (
    CheckpointManifest,
    DamagedCheckpoint,
    decision_in,
    read_manifest,
    step_and_digest,
    verify,
)
from psyche_core.types import Decision

FROM_MEMBERS = ("P2P", "P2PGcs")
_INSTEAD = (
    "the client uses an older checkpoint or the run's stored model instead, and gets the rounds since from its journal or from "
    "the other members"
)
_NO_ENDS: Mapping[int, bytes] = MappingProxyType({})


class NoModelSource(ModelError):
    """This machine has no files that describe how the run's model is built. The other members can provide them."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A folder to build the model from.

    step: for our own checkpoint, the last step whose results are in it; otherwise None. stored_step: for a stored model, the step
    in its manifest; None if it has none for this run.
    """

    folder: Path
    step: int | None = None
    stored_step: int | None = None


def find_origin(
    checkpoint: Choice,
    *,
    run_id: str,
    instance: bytes,
    base: Path,
    cache: Path,
    own: Path | None,
    at_most: int,
    fresh: bool = False,
    generation: int = 0,
    ends: Mapping[int, bytes] = _NO_ENDS,
    stored_step: int | None = None,
    journal_base: tuple[int, bytes] | None = None,
    conflicts: Callable[[Decision], bool] = lambda _: False,
    report: Callable[[str], None] | None = None,
    open_store: OpenStore = open_bucket,
    proceed: Proceed = go_on,
) -> Origin:
    """Find the folder to build the model from. May download, so call it in a worker thread.

    own: folder of our own checkpoints, None for none. at_most: the newest step that the run can have; a stored model of a later
    one is of a history that the run has left. fresh: ignore our own checkpoints. instance, generation, ends: see `belongs`.
    stored_step: step of the stored model according to the coordinator; None if unknown, then the stored model is read to find
    out. journal_base: step and full digest of a checkpoint of ours that is trusted whatever its generation, because our journal
    leads from it into the run's history. conflicts: see `belongs`. base, cache, report, open_store, proceed: see `sources.find`.
    Raises NoModelSource, and ModelError with a message that explains what to do.
    """
    report = report or _silence
    is_stored = checkpoint.name not in FROM_MEMBERS
    saved = None
    if own is not None and not fresh:
        trusted = belongs(instance, generation, ends, journal_base=journal_base, conflicts=conflicts)
        saved = newest_own(own, run_id, at_most=at_most, trusted=trusted, report=report)
    if is_stored:
        ours = (run_id, instance)

        def stored() -> Path:
            return sources.find(checkpoint, base=base, cache=cache, report=report, open_store=open_store, proceed=proceed)

        return _newer(saved, stored, ours=ours, at_most=at_most, stored_step=stored_step, report=report)

    if saved is not None:
        return saved

    local = None if stored_step else sources.local_folder(checkpoint, base=base)
    if local is not None:
        return Origin(local)

    message = f"this machine has no copy of the model of run {run_id}"
    raise NoModelSource(message)


def belongs(
    instance: bytes,
    generation: int,
    ends: Mapping[int, bytes],
    *,
    journal_base: tuple[int, bytes] | None = None,
    conflicts: Callable[[Decision], bool] = lambda _: False,
) -> Callable[[CheckpointManifest], bool]:
    """Return a function that checks whether a checkpoint belongs to the run's history.

    If a quorum signed a digest for the checkpoint's step, the digests must be equal; otherwise instance and generation must be
    equal. A run that was begun anew under the same name has another instance. The generation alone is not enough, because a
    coordinator that was restored from an older state repeats steps in the same generation with other results. instance (32
    bytes), generation: of the state. ends: full digest (32 bytes) by step, of the signed ends in the state. conflicts: whether
    the state has another decision about a checkpoint's last step. journal_base: see `find_origin`.
    """

    def check(manifest: CheckpointManifest) -> bool:
        if manifest.step in ends and manifest.digest:
            return _is_end(manifest, ends)
        decision = decision_in(manifest)
        if decision is not None and manifest.generation == generation and conflicts(decision):
            return False
        if _instance(manifest) == instance and step_and_digest(manifest) == journal_base:
            return True

        return (_instance(manifest), manifest.generation) == (instance, generation)

    return check


def _instance(manifest: CheckpointManifest) -> bytes:
    return bytes.fromhex(manifest.instance or "")


def newest_own(
    folder: Path,
    run_id: str,
    *,
    at_most: int,
    trusted: Callable[[CheckpointManifest], bool] = lambda _: True,
    report: Callable[[str], None],
) -> Origin | None:
    """Return the newest complete checkpoint of this run in our own folder, up to step `at_most`, or None if there is none.

    trusted: see `belongs`. report: called with a sentence for each checkpoint that is skipped.
    """
    for path in reversed(checkpoints(folder, run_id)):
        try:
            manifest = read_manifest(path)
            if manifest is None:
                report(f"our own checkpoint {path} is ignored: it has no {MANIFEST_FILE}, so nothing says what it holds")
                continue
            if manifest.run_id != run_id or manifest.step > at_most:
                continue
            if not trusted(manifest):
                report(
                    f"our own checkpoint {path} is ignored: it belongs to an earlier run of this name, or to a history that "
                    f"the run has left (its generation is {manifest.generation})"
                )
                continue
            verify(path, manifest)
        except DamagedCheckpoint as error:
            report(f"our own checkpoint is ignored: {error.fact}{_renamed(path)}; {_INSTEAD}")
            continue
        except ModelError as error:
            report(f"our own checkpoint is ignored: {error}")
            continue

        return Origin(path, manifest.step)
    return None


def held(
    folder: Path, run_id: str, ends: Mapping[int, bytes], *, report: Callable[[str], None] | None = None
) -> tuple[tuple[int, bytes], ...]:
    """Return (step, digest) of the signed epoch ends for which our folder has a complete checkpoint, oldest first.

    This reads every byte of these checkpoints. ends: full digest (32 bytes) by step. report: called with a sentence for each
    damaged checkpoint.
    """
    found: list[tuple[int, bytes]] = []
    for path in checkpoints(folder, run_id):
        try:
            manifest = read_manifest(path)
            if manifest is None or manifest.run_id != run_id or not _is_end(manifest, ends):
                continue
            verify(path, manifest)
        except DamagedCheckpoint as error:
            (report or _silence)(f"our own checkpoint is not offered: {error.fact}{_renamed(path)}; {_INSTEAD}")
            continue
        except ModelError as error:
            (report or _silence)(f"our own checkpoint is not offered: {error}")
            continue

        found.append((manifest.step, ends[manifest.step]))
    return tuple(found)


def is_signed(ends: Mapping[int, bytes]) -> Callable[[CheckpointManifest], bool]:
    """Return a function that checks whether a checkpoint is a signed end. ends: full digest (32 bytes) by step."""
    return lambda manifest: _is_end(manifest, ends)


def _is_end(manifest: CheckpointManifest, ends: Mapping[int, bytes]) -> bool:
    digest = ends.get(manifest.step)
    return digest is not None and manifest.digest == digest.hex()


def _newer(
    saved: Origin | None,
    find: Callable[[], Path],
    *,
    ours: tuple[str, bytes],
    at_most: int,
    stored_step: int | None,
    report: Callable[[str], None],
) -> Origin:
    """Return the newer one of our own checkpoint and the stored model, or our own if the stored one is unavailable.

    A stored model of a step after `at_most` counts as unavailable while we have our own.

    find: finds the stored model. ours: the run's id and instance; the step of a stored model of another run is ignored. Raises
    ModelError if there is neither.
    """
    if saved is not None and saved.step is not None and stored_step is not None and not saved.step <= stored_step <= at_most:
        return saved  # known without a download

    try:
        folder = find()
        manifest = read_manifest(folder)
    except ModelError as error:
        if saved is None:
            raise
        report(f"the stored model is unavailable, so our own checkpoint of step {saved.step} is used: {error}")
        return saved

    stored = manifest.step if manifest is not None and ours == (manifest.run_id, _instance(manifest)) else None
    if saved is not None and saved.step is not None and (stored is None or not saved.step <= stored <= at_most):
        return saved
    return Origin(folder, stored_step=stored)


def _renamed(path: Path) -> str:
    """Give a damaged checkpoint another name, so that it is not counted among those we keep. Returns what to add to a message."""
    try:
        return f" (renamed to {set_damaged_aside(path).name}, so that older checkpoints are kept)"
    except ModelError as error:
        return f" ({error})"


def _silence(sentence: str) -> None:
    """Ignore the sentence."""
