"""Where a member's model comes from when it starts: its own checkpoint, the place the run names, or nowhere on this machine.

A member's own checkpoint of the run comes first, under two conditions. It must not be newer than the run (a run that began anew
under the same name). It must belong to the run's present history: to the state's generation, or to an epoch end that a quorum
signed. Its step tells the client what it still has to get. If the run's model is a stored one, our own checkpoint is used when it
is newer; but if the coordinator says that the epoch begins with the stored one, every member takes that. A local folder of the
run's name is a starting point only where the members hold the model (P2P), and then only for how the model is built. In that case
the network is not asked, because the members have everything. A damaged checkpoint of our own is reported and skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from psyche_core.config.run_config import Choice
from psyche_core.errors import ModelError
from psyche_core.training.checkpoints import sources
from psyche_core.training.checkpoints.checkpoint import checkpoints
from psyche_core.training.checkpoints.manifest import CheckpointManifest, read_manifest, verify

FROM_MEMBERS = ("P2P", "P2PGcs")
_NO_ENDS: Mapping[int, bytes] = MappingProxyType({})


class SourceMissing(ModelError):
    """Nothing on this machine says how the run's model is built, and the other members do."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A folder to build the model from.

    step: the last one whose results are in it; None for the model the run names. stored_step: the one that this says it is of.
    """

    folder: Path
    step: int | None = None
    stored_step: int | None = None


def find_origin(
    checkpoint: Choice,
    *,
    run_id: str,
    base: Path,
    cache: Path,
    own: Path | None,
    at_most: int,
    fresh: bool = False,
    generation: int = 0,
    ends: Mapping[int, bytes] = _NO_ENDS,
    from_checkpoint: bool = False,
    stored_step: int | None = None,
    tell: Callable[[str], None] | None = None,
) -> Origin:
    """Where to build the model from; may download, so call it in a worker thread.

    own: folder of our own checkpoints, None for none; at_most: the newest step the run can have; fresh: leave those out.
    generation, ends: see `belongs`. from_checkpoint: whether the epoch begins with the stored model. stored_step: the step that
    the coordinator says the stored model is of; None: not known, so it is looked at. base, cache, tell: see `sources.find`.
    Raises SourceMissing, and ModelError with what to do.
    """
    tell = tell or _silence
    is_stored = checkpoint.name not in FROM_MEMBERS
    saved = None
    if own is not None and not fresh and not (is_stored and from_checkpoint):
        saved = newest_own(own, run_id, at_most=at_most, trusted=belongs(generation, ends), tell=tell)
    if is_stored:
        return _newer(saved, checkpoint, run_id=run_id, base=base, cache=cache, stored_step=stored_step, tell=tell)

    if saved is not None:
        return saved

    local = sources.local_folder(checkpoint, base=base)
    if local is not None:
        return Origin(local)

    message = f"this machine has no copy of the model of run {run_id}"
    raise SourceMissing(message)


def belongs(generation: int, ends: Mapping[int, bytes]) -> Callable[[CheckpointManifest], bool]:
    """Whether a checkpoint is of the run's history: what a quorum signed for its step, or else of the run's generation.

    A coordinator that was restored from an older state plays steps anew in the same generation: what was saved of them before is
    not what members signed since. generation: the state's; ends: full digest (32 bytes) by step of the signed ends in the state.
    """

    def check(manifest: CheckpointManifest) -> bool:
        if manifest.step in ends and manifest.digest:
            return _is_end(manifest, ends)

        return manifest.generation == generation

    return check


def newest_own(
    folder: Path,
    run_id: str,
    *,
    at_most: int,
    trusted: Callable[[CheckpointManifest], bool] = lambda _: True,
    tell: Callable[[str], None],
) -> Origin | None:
    """The newest whole checkpoint of this run in our own folder, of no later step than `at_most`. trusted: see `belongs`."""
    for path in reversed(checkpoints(folder, run_id)):
        try:
            manifest = read_manifest(path)
            if manifest is None or manifest.run_id != run_id or manifest.step > at_most:
                continue
            if not trusted(manifest):
                tell(
                    f"our own checkpoint {path} is passed over: the run went back and has left what it is of (its generation is "
                    f"{manifest.generation})"
                )
                continue
            verify(path, manifest)
        except ModelError as error:
            tell(f"our own checkpoint is passed over: {error}")
            continue

        return Origin(path, manifest.step)
    return None


def held(
    folder: Path, run_id: str, ends: Mapping[int, bytes], *, tell: Callable[[str], None] | None = None
) -> tuple[tuple[int, bytes], ...]:
    """The signed epoch ends of which a whole checkpoint lies in our folder, oldest first; reads every byte of them.

    ends: full digest (32 bytes) by step. A damaged one is told.
    """
    found: list[tuple[int, bytes]] = []
    for path in checkpoints(folder, run_id):
        try:
            manifest = read_manifest(path)
            if manifest is None or manifest.run_id != run_id or not _is_end(manifest, ends):
                continue
            verify(path, manifest)
        except ModelError as error:
            (tell or _silence)(f"our own checkpoint does not count: {error}")
            continue

        found.append((manifest.step, ends[manifest.step]))
    return tuple(found)


def _is_end(manifest: CheckpointManifest, ends: Mapping[int, bytes]) -> bool:
    digest = ends.get(manifest.step)
    return digest is not None and manifest.digest == digest.hex()


def _newer(
    saved: Origin | None,
    checkpoint: Choice,
    *,
    run_id: str,
    base: Path,
    cache: Path,
    stored_step: int | None,
    tell: Callable[[str], None],
) -> Origin:
    """The newer one of our own checkpoint and the stored model; our own, too, where the stored one cannot be had."""
    if saved is not None and saved.step is not None and stored_step is not None and saved.step > stored_step:
        return saved  # nothing needs to be downloaded to know

    try:
        folder = sources.find(checkpoint, base=base, cache=cache, tell=tell)
        manifest = read_manifest(folder)
    except ModelError as error:
        if saved is None:
            raise
        tell(f"the stored model cannot be had, so our own checkpoint of step {saved.step} is used: {error}")
        return saved

    stored = None if manifest is None or manifest.run_id != run_id else manifest.step
    if saved is not None and saved.step is not None and (stored is None or saved.step > stored):
        return saved
    return Origin(folder, stored_step=stored)


def _silence(sentence: str) -> None:
    """Nobody listens."""
