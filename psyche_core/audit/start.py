"""The model that an audit begins with: a checkpoint of the run, or the weights with which the run file lets the run begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from psyche_core.audit.finding import FoundCheckpoint, checkpoints_in
from psyche_core.audit.segments import Segment
from psyche_core.config.run_config import RunFile
from psyche_core.errors import InputError, ModelError, NoSuchModel
from psyche_core.storage.checkpoint_names import MANIFEST_FILE
from psyche_core.storage.model_stores.interface import OpenStore
from psyche_core.storage.object_store import open_bucket
from psyche_core.training.checkpoints import sources
from psyche_core.training.checkpoints.initial_model import FROM_MEMBERS
from psyche_core.training.checkpoints.manifest import CheckpointManifest, verify


@dataclass(frozen=True, slots=True)
class Start:
    """A folder to build the model from. step: of its masters. manifest: None for the run's first weights."""

    folder: Path
    step: int
    manifest: CheckpointManifest | None = None

    @property
    def instance(self) -> bytes | None:
        """Of the run that the checkpoint is of, 32 bytes; None if that is not known."""
        known = None if self.manifest is None else self.manifest.instance
        return None if known is None else bytes.fromhex(known)

    @property
    def name(self) -> str:
        """What it is, for people."""
        return f"the checkpoint {self.folder}" if self.manifest is not None else f"the model in {self.folder}"


def from_checkpoint(folder: Path, segments: Sequence[Segment], *, run_id: str) -> Start:
    """Begin with a checkpoint, or with the first usable one of a folder of checkpoints; compares its files with its manifest.

    A folder with a model but no manifest is the model before the first step. A checkpoint is usable if a journal goes on from its
    step. Raises InputError.
    """
    found = checkpoints_in(folder)
    if not found:
        if not (folder / "config.json").exists():
            message = f"{folder} has neither a checkpoint ({MANIFEST_FILE}) nor a model (config.json); give a folder with one"
            raise InputError(message)
        return Start(folder, 0)

    ours = [each for each in found if each.manifest.run_id == run_id]
    if not ours:
        message = f"{found[0].folder} is a checkpoint of the run {found[0].manifest.run_id!r}, and the run file is of {run_id!r}"
        raise InputError(message)

    chosen = next((each for each in ours if _goes_on(each, segments)), None)
    if chosen is None:
        steps = ", ".join(str(each.manifest.step) for each in ours)
        reach = ", ".join(f"{each.base_step} to {each.last_step}" for each in segments)
        message = f"no journal goes on from a checkpoint in {folder} (of step {steps}): the journals lead from step {reach}"
        raise InputError(message)

    try:
        verify(chosen.folder, chosen.manifest)
    except ModelError as error:
        raise InputError(str(error)) from error

    return Start(chosen.folder, chosen.manifest.step, chosen.manifest)


def _goes_on(checkpoint: FoundCheckpoint, segments: Sequence[Segment]) -> bool:
    manifest = checkpoint.manifest
    return any(
        manifest.instance in (None, each.header.instance.hex()) and each.base_step <= manifest.step <= each.last_step
        for each in segments
    )


def from_run_file(
    run: RunFile,
    *,
    base: Path,
    cache: Path,
    own: Path | None,
    report: Callable[[str], None],
    open_store: OpenStore = open_bucket,
) -> Start:
    """Begin with the weights that the run file names. Downloads them if necessary.

    own: folder from which the architecture's plugin builds every member's first model; None for the run file's place. base,
    cache, report, open_store: see `sources.find`. Raises NoSuchModel if the run begins with what its members have.
    """
    checkpoint = run.model.LLM.checkpoint
    if own is not None:
        return Start(own, 0)
    if checkpoint.name in FROM_MEMBERS:
        local = sources.local_folder(checkpoint, base=base)
        if local is None:
            message = "the run file says that the members have the first model; give a checkpoint of it with --checkpoint"
            raise NoSuchModel(message)
        return Start(local, 0)

    return Start(sources.find(checkpoint, base=base, cache=cache, report=report, open_store=open_store), 0)
