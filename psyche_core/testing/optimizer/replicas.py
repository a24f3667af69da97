"""Replicas of a toy model that play rounds in one process, for tests of optimizers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.testing.toy_model import ToyModel, toy_samples
from psyche_core.training.inner_steps import parts_of


@dataclass(slots=True)
class Replica:
    """One member: its model, its optimizer and its payloads by step."""

    model: ToyModel
    optimizer: Optimizer
    sent: dict[int, bytes] = field(default_factory=dict)

    def train(self, step: int, *, data: int, learning_rate: float) -> bytes:
        """Train one step and return the payload. An optimizer with inner steps takes two to four."""
        self.compute(data=data, learning_rate=learning_rate)
        self.sent[step] = self.optimizer.compress(step, learning_rate=learning_rate)
        return self.sent[step]

    def compute(self, *, data: int, learning_rate: float) -> None:
        """Everything of a step before `compress`: look-ahead, inner steps, and the gradients that it will take."""
        self.optimizer.load_lookahead(learning_rate=learning_rate)
        parts = parts_of(toy_samples(data, count=min(max(2, self.optimizer.inner_steps), 4)), self.optimizer.inner_steps)
        for part in parts[:-1]:
            self.model.gradients(part, micro_batch_size=1)
            self.optimizer.inner_step(learning_rate=learning_rate)
        self.model.gradients(parts[-1], micro_batch_size=1)


def digest(parameters: Mapping[str, Any]) -> str:
    """SHA-256 over names and float32 bits, ascending by name."""
    state = hashlib.sha256()
    for name in sorted(parameters):
        state.update(name.encode())
        state.update(parameters[name].detach().cpu().contiguous().numpy().tobytes())

    return state.hexdigest()


def shared(optimizer: Optimizer) -> dict[str, Any]:
    """All tensors that replicas share: masters, and the public state under names with a prefix. Not copies."""
    return {**optimizer.masters, **{f"public_state/{name}": tensor for name, tensor in optimizer.public_state.items()}}


def copy_shared(optimizer: Optimizer, into: Optimizer) -> None:
    """Load copies of an optimizer's masters and public state, as a member that joins does."""
    if optimizer.public_state:
        into.load_public_state({name: tensor.clone() for name, tensor in optimizer.public_state.items()})
    into.load_parameters({name: master.clone() for name, master in optimizer.masters.items()})


def play_rounds(
    replicas: Sequence[Replica],
    *,
    rounds: int,
    learning_rate: float,
    seed: int = 0,
    first: int = 1,
    after_round: Callable[[], None] | None = None,
) -> None:
    """Play overlapped rounds, and apply the last payloads at the end.

    About a fifth of the shares are missing, and a fifth of the payloads are not accepted.

    Every replica applies the accepted payloads in its own arrival order. first: number of the first step. after_round is called
    after all replicas have applied them.
    """
    rng = random.Random(seed)
    accepted: dict[int, list[int]] = {}
    for step in range(first, first + rounds + 2):
        for replica in replicas:
            if step - first >= 2:
                payloads = [replicas[sender].sent[step - 2] for sender in accepted[step - 2]]
                rng.shuffle(payloads)
                own_accepted = any(replicas[sender] is replica for sender in accepted[step - 2])
                replica.optimizer.apply(step - 2, payloads, learning_rate=learning_rate, own_accepted=own_accepted)

        if after_round is not None:
            after_round()
        if step - first >= rounds:
            continue

        senders = [number for number in range(len(replicas)) if rng.random() < 0.8]
        for number in senders:
            replicas[number].train(step, data=step * len(replicas) + number, learning_rate=learning_rate)
        accepted[step] = [number for number in senders if rng.random() < 0.8]
