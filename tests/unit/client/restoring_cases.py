"""A member that trains, saves checkpoints and starts again from its real folder, without a network."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from psyche_core.client.runtime.restoring import Restorer
from psyche_core.config.run_config import load_run_file
from psyche_core.coordinator import new_state
from psyche_core.coordinator.state import CoordinatorState, Progress
from psyche_core.storage.checkpoint_names import checkpoint_path
from psyche_core.training.checkpoints.checkpoint import save_checkpoint
from psyche_core.training.checkpoints.manifest import CheckpointFacts
from psyche_core.types import RunState
from tests.unit.training.journal_cases import applied, history, payload_of, result

RUN, INSTANCE = "restored", b"i" * 32
BEGUN = load_run_file(Path(__file__).parents[3] / "examples/local_testnet/state.toml")


class Masters:
    """Masters that are a hash of all that was applied to them."""

    parameter_count = 4

    def __init__(self, *, step: int = 0, content: bytes = b"first") -> None:
        self.step, self.content = step, content

    def full_digest(self) -> bytes:
        return hashlib.sha256(self.content).digest()

    def rate_of(self, step: int) -> float:
        return 0.1

    def apply(self, step: int, payloads: Sequence[bytes], *, own_accepted: bool, learning_rate: float | None = None) -> None:
        assert step == self.step + 1
        self.step, self.content = step, hashlib.sha256(b"".join((self.content, *payloads))).digest()


class Member:
    """Applies rounds as a member does, with a checkpoint of each epoch's end, and starts again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.told = folder, list[str]()
        self.masters = Masters()
        self.contents = {0: self.masters.content}
        self.restorer = Restorer(folder, None, self.told.append)
        self.start(state_at(1), step=0)

    def train(self, last: int) -> None:
        journal = self.restorer.journal
        assert journal is not None
        for step in range(self.masters.step + 1, last + 1):
            results = [result(step, slot) for slot in range(4)]
            for one in results:
                journal.add_result(one, payload_of(step, one.slot))
            journal.add_applied(applied(step, *results))
            payloads = [journal.payload(one.payload_hash) for one in results]
            self.masters.apply(step, payloads, own_accepted=False)
            self.contents[step] = self.masters.content
        journal.sync()

    def end_epoch(self, *, instance: bytes = INSTANCE) -> None:
        journal, step, digest = self.restorer.journal, self.masters.step, self.masters.full_digest()
        assert journal is not None
        place = checkpoint_path(self.folder, RUN, step)
        facts = CheckpointFacts(run_id=RUN, step=step, epoch=0, data_index=0, digest=digest, instance=instance)
        save_checkpoint(place, facts, write=Path.mkdir)
        journal.begin(step, digest, 0)

    def start(self, state: CoordinatorState, *, step: int) -> int | None:
        """Start from the checkpoint of a step."""
        self.restorer.close()
        self.masters = Masters(step=step, content=self.contents[step])
        trainer: Any = self.masters
        return self.restorer.restore(trainer, state, step=step, use_journal=True)


def state_at(step: int, *, generation: int = 0) -> CoordinatorState:
    """The coordinator waits for members, and trains `step` next."""
    progress = Progress(epoch=1, step=step)
    state = new_state(RUN, BEGUN.config, BEGUN.model, instance=INSTANCE)
    return replace(
        state,
        run_state=RunState.WaitingForMembers,
        progress=progress,
        generation=generation,
        from_checkpoint=False,
        history=history(step - 1),
    )
