"""A simulated member's disk: checkpoints of epoch ends, and a journal of what was applied and verified since the last one.

It outlives the process where a fault says so. What is written is on the disk at once: the real journal syncs before a statement
leaves. What may be loaded again follows `psyche_core.training.origin`: checkpoints of the run's generation, or of ends that a
quorum signed, none newer than the run; then the journal's steps as far as they go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psyche_core.client.events import KeptResult
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.testing.sim.replica import Payload

KEPT = 4
"""Checkpoints kept: as many as the coordinator remembers ends."""


@dataclass(frozen=True, slots=True)
class Saved:
    """Masters on the disk. step: the last one in them; generation: of the run; digest: full digest."""

    step: int
    generation: int
    masters: object
    digest: bytes


class Disk:
    """See the module."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, int, int], KeptResult] = {}
        self.payloads: dict[bytes, Payload] = {}
        self._saved: list[Saved] = []
        self._journal: list[Saved] = []

    def save(self, saved: Saved) -> None:
        """A checkpoint; the journal begins anew with it."""
        self._saved = [one for one in self._saved if (one.step, one.generation) != (saved.step, saved.generation)][1 - KEPT :]
        self._saved.append(saved)
        self._journal = [saved]
        self.kept, self.payloads = {}, {}

    def applied(self, saved: Saved) -> None:
        """A step was applied: the journal grows, if it goes on from the step before."""
        if self._journal and self._journal[-1].generation == saved.generation and self._journal[-1].step == saved.step - 1:
            self._journal.append(saved)

    def keep(self, results: Mapping[KeptResult, Payload]) -> None:
        """Verified results and their payloads go into the journal."""
        for known, payload in results.items():
            self.kept[(known.result.epoch, known.result.height, known.slot)] = known
            self.payloads[known.result.payload_hash] = payload

    def at_end(self, step: int) -> Saved | None:
        """The checkpoint of that step, the newest of several."""
        return next((saved for saved in reversed(self._saved) if saved.step == step), None)

    def newest(self, state: CoordinatorState) -> Saved | None:
        """What a member loads that starts in this state, None for nothing of its own."""
        at_most = state.progress.step - 1
        ends = {end.step: end.digest for end in state.ends}
        found = [
            saved
            for saved in self._saved
            if saved.step <= at_most and (saved.generation == state.generation or ends.get(saved.step) == saved.digest)
        ]
        newest = max(found, key=lambda saved: saved.step, default=None)
        if newest is not None and self._journal and newest is self._journal[0] and newest.generation == state.generation:
            return next(saved for saved in reversed(self._journal) if saved.step <= at_most)

        return newest

    def held(self, state: CoordinatorState) -> tuple[tuple[int, bytes], ...]:
        """Steps and digests of the signed ends of which there is a checkpoint."""
        have = {(saved.step, saved.digest) for saved in self._saved}
        return tuple((end.step, end.digest) for end in state.ends if (end.step, end.digest) in have)
