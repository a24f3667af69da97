"""Tells whether a journal belongs to the run's history in a coordinator's state, and up to which step.

It looks at the journal's header and rounds, and at the checkpoint with which the journal begins. `restoring` acts on the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from psyche_core.client.machine.epoch import masters_due
from psyche_core.client.machine.rounds.settled_rounds import first_conflicting_step
from psyche_core.coordinator.history import signed_digests
from psyche_core.coordinator.state import NO_DIGEST, CoordinatorState
from psyche_core.errors import ModelError
from psyche_core.storage.checkpoint_names import checkpoint_path
from psyche_core.training.checkpoints.journal_records import AppliedRound, Header
from psyche_core.training.checkpoints.manifest import CheckpointManifest, decision_in, read_manifest, step_and_digest
from psyche_core.types import Decision


def signed_ends(state: CoordinatorState) -> Mapping[int, bytes]:
    """Return full digests, by step, from which a member may continue; empty if the stored checkpoint must be used."""
    return {} if state.from_checkpoint else signed_digests(state)


def last_valid_step(header: Header, rounds: Sequence[AppliedRound], state: CoordinatorState) -> int | None:
    """Return the last step to replay; None if the journal's history and the run's have no signed step in common."""
    due = masters_due(state)
    if header.generation == state.generation:
        anew = first_conflicting_step(state, rounds)
        return due if anew is None else min(due, anew - 1)

    reach = range(header.base_step, min(due, header.base_step + len(rounds)) + 1)
    return max((step for step in signed_ends(state) if step in reach), default=None)


def leads_to(header: Header, rounds: Sequence[AppliedRound], base: Header, decided: Decision | None) -> bool:
    """Return whether a journal leads to another one's base, as far as is known. decided: the decision of the base's last step."""
    if header.base_step == base.base_step:
        return header.base_digest == base.base_digest
    last = next((each for each in rounds if each.step == base.base_step), None)
    if last is None or decided is None:
        return last is not None
    if NO_DIGEST not in (last.history, decided.history):
        return last.history == decided.history
    return (last.epoch, last.height, last.statements) == (decided.epoch, decided.height, decided.statements)


def decided_otherwise(state: CoordinatorState, base: Header, decided: Decision | None) -> bool:
    """Return whether the state has another decision about the last step of a journal's base, in the same generation."""
    return decided is not None and base.generation == state.generation and first_conflicting_step(state, (decided,)) is not None


def manifest_of_base(folder: Path, run_id: str, header: Header) -> CheckpointManifest | None:
    """Return the manifest of the checkpoint with which a journal begins; None if it is not in the folder."""
    try:
        manifest = read_manifest(checkpoint_path(folder, run_id, header.base_step))
    except ModelError:
        return None
    if manifest is None or step_and_digest(manifest) != (header.base_step, header.base_digest):
        return None
    return manifest


def decision_at_base(folder: Path, run_id: str, header: Header) -> Decision | None:
    """Return the decision of the last step of the checkpoint with which a journal begins; None if unknown."""
    manifest = manifest_of_base(folder, run_id, header)
    return None if manifest is None else decision_in(manifest)
