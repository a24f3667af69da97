"""Where a member's model comes from when it starts: what it saved itself, the place the run names, or nowhere on this machine.

Decided here: while the run's model is the one its members hold (P2P), a member's own checkpoint of that run comes first, if it is
not newer than the run is (a run that began anew under the same name), for the client sees from its step what it still has to get.
A local folder of the run's name is a starting point only, good for how the model is built; the network is asked for nothing,
since the members have it all. While the run's model is a stored one, every member takes just that. A checkpoint of our own that
is damaged is told and passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from psyche_core.errors import ModelError
from psyche_core.run_config import Choice
from psyche_core.training import sources
from psyche_core.training.checkpoint import checkpoints
from psyche_core.training.checkpoint_manifest import read_manifest, verify

FROM_MEMBERS = ("P2P", "P2PGcs")


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
    tell: Callable[[str], None] | None = None,
) -> Origin:
    """Where to build the model from; may download, so call it in a worker thread.

    own: folder of our own checkpoints, None for none; at_most: the newest step the run can have; fresh: leave those out.
    base, cache, tell: see `sources.find`.
    Raises SourceMissing, and ModelError with what to do.
    """
    tell = tell or _silence
    if checkpoint.name not in FROM_MEMBERS:
        folder = sources.find(checkpoint, base=base, cache=cache, tell=tell)
        manifest = read_manifest(folder)
        return Origin(folder, stored_step=None if manifest is None or manifest.run_id != run_id else manifest.step)

    saved = None if own is None or fresh else newest_own(own, run_id, at_most=at_most, tell=tell)
    if saved is not None:
        return saved

    local = sources.local_folder(checkpoint, base=base)
    if local is not None:
        return Origin(local)

    message = f"this machine has no copy of the model of run {run_id}"
    raise SourceMissing(message)


def newest_own(folder: Path, run_id: str, *, at_most: int, tell: Callable[[str], None]) -> Origin | None:
    """The newest whole checkpoint of this run in our own folder, of no later step than `at_most`."""
    for path in reversed(checkpoints(folder, run_id)):
        try:
            manifest = read_manifest(path)
            if manifest is None or manifest.run_id != run_id or manifest.step > at_most:
                continue
            verify(path, manifest)
        except ModelError as error:
            tell(f"our own checkpoint is passed over: {error}")
            continue

        return Origin(path, manifest.step)
    return None


def _silence(sentence: str) -> None:
    """Nobody listens."""
