"""One client's training: a model, its optimizer and a learning-rate schedule, called by the client in this order.

    trainer.apply(s - 2, accepted payloads)      first, from the third step on
    trainer.train(s, samples)  -> Trained        look-ahead weights, gradients, payload

Look-ahead stands in for the not yet applied update of step s - 1 and uses schedule(s - 1), as the reference does. A result of
step s is compressed with schedule(s) and applied with schedule(s + 2), whatever round applies it (also in the drain). A round
that is applied again from a journal gets the rate it had, because the schedule may have changed since. Everything is synchronous
and for ONE worker thread; only `check` may run in another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.p2p.manifest import Manifest, Piece, Table
from psyche_core.training import snapshot
from psyche_core.training.checkpoints.private_state import load_private, save_private
from psyche_core.training.digest import full_digest
from psyche_core.training.micro_batch import MicroBatch, Notice

APPLY_DELAY = 2
"""Steps between training a result and applying it (protocol section 3)."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What one step gave. loss in nats per predicted token; tokens in the samples; seconds of wall time; payload to announce."""

    step: int
    loss: float
    tokens: int
    seconds: float
    payload: bytes


class Trainer:
    """See the module.

    learning_rate: step -> dimensionless step size, cold start included. micro_batch_size: sequences per forward pass; changes
    memory and speed, not the result beyond rounding. It becomes smaller when memory runs out; notice is told so.
    """

    def __init__(
        self,
        *,
        model: Model,
        optimizer: Optimizer,
        learning_rate: Callable[[int], float],
        micro_batch_size: int,
        notice: Notice = lambda _: None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._learning_rate = learning_rate
        self._micro_batch = MicroBatch(model, size=micro_batch_size, notice=notice)

    @property
    def vocab_size(self) -> int:
        """Token ids are 0 <= id < vocab_size."""
        return self._model.vocab_size

    @property
    def description(self) -> Mapping[str, bytes]:
        """The small files that say how the model is built, by name; empty where it cannot be described so."""
        return self._model.description

    @property
    def micro_batch_size(self) -> int:
        """Sequences per forward pass now."""
        return self._micro_batch.size

    @property
    def max_payload_bytes(self) -> int:
        """No valid payload of this run is longer."""
        return self._optimizer.max_payload_bytes

    @property
    def parameter_count(self) -> int:
        """Trainable values of the model."""
        return sum(int(tensor.numel()) for tensor in self._optimizer.masters.values())

    def train(self, step: int, samples: Samples) -> Trained:
        """Train `step` (from 1) on this client's share. Raises ModelError for samples that do not fit, NonFiniteError."""
        start = time.perf_counter()
        self._optimizer.load_lookahead(learning_rate=self._learning_rate(step - 1))
        loss = self._micro_batch.gradients(samples)
        payload = self._optimizer.compress(step, learning_rate=self._learning_rate(step))
        seconds = time.perf_counter() - start
        return Trained(step, loss, samples.count * samples.sequence_length, seconds, payload)

    def check(self, payload: bytes) -> None:
        """Validate a peer's payload; any thread. Raises PayloadRejected."""
        self._optimizer.check(payload)

    def rate_of(self, step: int) -> float:
        """The learning rate that `apply` takes for the results of `step` when none is given."""
        return self._learning_rate(step + APPLY_DELAY)

    def apply(self, step: int, payloads: Sequence[bytes], *, own_accepted: bool, learning_rate: float | None = None) -> None:
        """Apply the accepted payloads of `step`, in any order; every one must have passed `check`.

        learning_rate: the one that was used when the step was first applied; None: the schedule's.
        """
        rate = self.rate_of(step) if learning_rate is None else learning_rate
        self._optimizer.apply(step, payloads, learning_rate=rate, own_accepted=own_accepted)

    def forget(self) -> None:
        """Keep the masters and forget all other state of the optimizer, results that wait to be settled included."""
        self._optimizer.load_parameters({name: master.clone() for name, master in self._optimizer.masters.items()})

    def evaluate(self, samples: Samples) -> float:
        """Loss at the master weights, in nats per predicted token. The next `train` loads its own weights again."""
        self._optimizer.load_masters()
        return self._micro_batch.loss(samples)

    def load_masters(self) -> None:
        """Write the masters into the model's own weights, for who goes on with the model after training."""
        self._optimizer.load_masters()

    def full_digest(self) -> bytes:
        """SHA-256 over all masters."""
        return full_digest(self._optimizer.masters)

    @property
    def table(self) -> Table:
        """Names and shapes of the masters: what a manifest of this run's model must have."""
        return snapshot.table_of(self._optimizer.masters)

    def read_piece(self, piece: Piece) -> bytes:
        """The bytes of one piece of the masters."""
        return snapshot.read_piece(self._optimizer.masters, piece)

    def differing(self, manifest: Manifest) -> tuple[int, ...]:
        """Numbers of the pieces in which our masters differ from a manifest. Raises ModelError for another table."""
        return snapshot.differing(self._optimizer.masters, manifest)

    def install(self, manifest: Manifest, pieces: Mapping[int, bytes | memoryview]) -> None:
        """Replace the masters by those of a manifest and forget all optimizer state, or change nothing and raise ModelError.

        pieces: fetched bytes by number of the piece, at least those of `differing`; on disk, if they like. Raises
        ModelHalfReplaced when they could not be read to the end any more.
        """
        snapshot.install(self._optimizer, manifest, pieces)

    def save_private(self, path: Path) -> None:
        """Write what only this replica's optimizer has, for its own next start. Raises ModelError."""
        state = self._optimizer.private_state()
        if state:
            save_private(path, state, masters=self.full_digest())

    def load_private(self, path: Path) -> bool:
        """Take back what was saved with just these masters; whether there was any. Raises ModelError and changes nothing then."""
        state = load_private(path, masters=self.full_digest())
        if state is not None:
            self._optimizer.load_private_state(state)
        return state is not None

    def save(self, directory: Path) -> None:
        """Write a self-contained checkpoint of the masters, atomically. Raises ModelError."""
        self._model.save(directory, parameters=self._optimizer.masters)

    def close(self) -> None:
        """End what the model runs beside this process. Idempotent."""
        self._model.close()
