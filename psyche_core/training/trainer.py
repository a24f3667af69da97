"""One client's training: a model, its optimizer and a learning-rate schedule, called by the client in this order.

    trainer.apply(s - 2, accepted payloads)      first, from the third step on
    trainer.train(s, samples)  -> Trained        look-ahead weights, gradients (with inner steps, see `Optimizer`), payload

Look-ahead replaces the update of step s - 1, which is not applied yet, and uses schedule(s - 1), as the reference implementation
does. A result of step s is compressed with schedule(s) and applied with schedule(s + 2), in whatever round it is applied (also in
the drain round). A round that is applied again from a journal uses its original rate, because the schedule may have changed
since. Everything is synchronous and must be called from ONE worker thread; only `check` may run in another thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.parameters import LazyParameters, shapes_of
from psyche_core.interfaces.replay import AppliedStep, Replay
from psyche_core.p2p.manifest import Manifest, Piece, Table
from psyche_core.training import snapshot
from psyche_core.training.checkpoints.private_state import load_private, save_private
from psyche_core.training.checkpoints.public_state import save_with_public_state
from psyche_core.training.gradient_norm import gradient_norm
from psyche_core.training.inner_steps import parts_of
from psyche_core.training.micro_batch import MicroBatch, Notice
from psyche_core.training.shared_tensors import check_names, shared_digest, shared_tensors
from psyche_core.training.update_statistics import UpdateStatistics

APPLY_DELAY = 2
"""Number of steps between training a result and applying it (protocol section 3)."""


@dataclass(frozen=True, slots=True)
class Trained:
    """Result of one step.

    loss: in nats per predicted token. tokens: number of tokens in the samples. seconds: wall time. payload: bytes to announce.
    learning_rate: of the schedule at this step. gradient_norm: L2 norm of the gradient before clipping; with inner steps the mean
    over the share's parts, as the loss then is. compress_seconds: of them in `Optimizer.compress`.
    """

    step: int
    loss: float
    tokens: int
    seconds: float
    payload: bytes
    learning_rate: float
    gradient_norm: float
    compress_seconds: float = 0.0


class Trainer:
    """One client's training, see the module. Raises ModelError for a parameter with a reserved name (`shared_tensors.PREFIX`).

    learning_rate: returns the learning rate of a step, including the cold-start factor. micro_batch_size: sequences per forward
    pass; it changes memory and speed but not the result, except for rounding. It becomes smaller when memory runs out; then
    notice is called with a sentence.

    checked: whether other members check the shares. Then private state is neither saved nor loaded, because nobody could show how
    it was computed. What was sent is then taken off delta even if it was not accepted: otherwise a later result would not follow
    from the delta to which the last one committed.
    """

    def __init__(
        self,
        *,
        model: Model,
        optimizer: Optimizer,
        learning_rate: Callable[[int], float],
        micro_batch_size: int,
        notice: Notice = lambda _: None,
        checked: bool = False,
    ) -> None:
        check_names(optimizer)
        self._model = model
        self._optimizer = optimizer
        self._learning_rate = learning_rate
        self._checked = checked
        self._micro_batch = MicroBatch(model, size=micro_batch_size, notice=notice)

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary: token ids are 0 <= id < vocab_size."""
        return self._model.vocab_size

    @property
    def inference_module(self) -> Any:
        """The model's module for evaluations, None if it has none."""
        return self._model.inference_module

    @property
    def description(self) -> Mapping[str, bytes]:
        """The small files that describe how the model is built, by name; empty if the model has no such description."""
        return self._model.description

    @property
    def micro_batch_size(self) -> int:
        """Present number of sequences per forward pass."""
        return self._micro_batch.size

    @property
    def max_payload_bytes(self) -> int:
        """Maximum length in bytes of a valid payload of this run."""
        return self._optimizer.max_payload_bytes

    @property
    def parameter_count(self) -> int:
        """Number of trainable values of the model."""
        return sum(math.prod(shape) for shape in shapes_of(self._optimizer.masters).values())

    def train(self, step: int, samples: Samples) -> Trained:
        """Train `step` (from 1) on this client's share. Raises NonFiniteError, and ModelError for samples that do not fit."""
        start = time.perf_counter()
        self._optimizer.load_lookahead(learning_rate=self._learning_rate(step - 1))
        loss, norm, rate = self._gradients(step, samples)
        before = time.perf_counter()
        payload = self._optimizer.compress(step, learning_rate=rate)
        end = time.perf_counter()
        return Trained(step, loss, samples.count * samples.sequence_length, end - start, payload, rate, norm, end - before)

    def _gradients(self, step: int, samples: Samples) -> tuple[float, float, float]:
        """Compute the gradients for `compress`, after the inner steps if the optimizer has any.

        Returns the loss in nats per token and the gradients' L2 norm, means over all samples, and the step's learning rate.
        """
        parts = parts_of(samples, self._optimizer.inner_steps)
        if len(parts) == 1:
            return self._micro_batch.gradients(samples), gradient_norm(self._model), self._learning_rate(step)

        rate = self._learning_rate(step)
        loss = norm = 0.0
        for number, part in enumerate(parts, start=1):
            weight = part.count / samples.count
            loss += weight * self._micro_batch.gradients(part)
            norm += weight * gradient_norm(self._model)
            if number < len(parts):
                self._optimizer.inner_step(learning_rate=rate)
        return loss, norm, rate

    def check(self, payload: bytes) -> None:
        """Validate a peer's payload. May be called from any thread. Raises PayloadRejected."""
        self._optimizer.check(payload)

    def positions(self, payload: bytes) -> Any | None:
        """Return the positions of a checked payload's coefficients, see `interfaces.replay`; None if they cannot be known."""
        replay = self.replay
        return None if replay is None else replay.positions(payload)

    @property
    def replay(self) -> Replay | None:
        """The data about the optimizer that verifiers need; None if its training cannot be replayed."""
        return self._optimizer.replay

    def trained_after(self, step: int, *, first: bool) -> int:
        """Return the newest step whose results are in the masters when a share of `step` is trained; 0 for none.

        first: whether it is the first step of an epoch. At an epoch's end everything has been applied.
        """
        return max(0, step - (1 if first else APPLY_DELAY))

    def recompute(
        self,
        step: int,
        samples: Samples,
        *,
        signs: Sequence[Any] | None,
        undone: Sequence[AppliedStep],
        ahead: bytes | None = None,
    ) -> list[Any]:
        """Return the gradients from which another replica's delta of a share can be recomputed, see `Replay.gradient`.

        Returns float32 numpy arrays [chunks, size], one for each group.

        step: of the share. signs: of its delta before, None if that was zero. undone: the steps that our masters include and its
        masters did not, the newest first. ahead: in place of signs, the payload by which the replica looked ahead, empty for
        none, if the optimizer looks ahead by payloads. The masters do not change; the next `train` loads its own weights
        again. Raises ValueError if the optimizer cannot be verified, ModelError for samples that do not fit, PayloadRejected.
        """
        replay = self._optimizer.replay
        if replay is None or not replay.verifiable or self._optimizer.inner_steps != 1:
            message = "this optimizer's training cannot be recomputed"
            raise ValueError(message)

        rate = self._learning_rate(step - 1)
        if ahead is None:
            replay.load_weights(signs, undone=undone, learning_rate=rate)
        else:
            replay.load_weights_ahead(ahead, undone=undone, learning_rate=rate)
        self._micro_batch.gradients(samples)
        gradients = {name: tensor.grad for name, tensor in self._model.parameters.items() if tensor.grad is not None}
        rows = [np.arange(group.count, dtype=np.int64) for group in replay.groups]
        return replay.gradient(gradients, rows)

    def trained_with(self, step: int) -> float:
        """Return the learning rate with which a share of this step is compressed."""
        return self._learning_rate(step)

    def rate_of(self, step: int) -> float:
        """Return the learning rate that `apply` uses for the results of `step` if none is given."""
        return self._learning_rate(step + APPLY_DELAY)

    def apply(self, step: int, payloads: Sequence[bytes], *, own_accepted: bool, learning_rate: float | None = None) -> None:
        """Apply the accepted payloads of `step`, in any order. Each must have passed `check`.

        own_accepted: whether our own result is among them. learning_rate: the rate with which the step was first applied, when it
        is applied again; None for the schedule's rate.
        """
        rate = self.rate_of(step) if learning_rate is None else learning_rate
        self._optimizer.apply(step, payloads, learning_rate=rate, own_accepted=own_accepted or self._checked)

    def update_statistics(self, *, every: int) -> UpdateStatistics:
        """Return an object that measures the optimizer at every `every`-th applied step, see `UpdateStatistics`."""
        return UpdateStatistics(self._optimizer, every=every)

    def forget(self) -> None:
        """Discard all private state of the optimizer, including results that are not settled yet."""
        masters = self._optimizer.masters
        lazy = isinstance(masters, LazyParameters)  # then each look-up makes a copy already, and there is never a whole one
        self._optimizer.load_parameters(masters if lazy else {name: master.clone() for name, master in masters.items()})

    def evaluate(self, samples: Samples) -> float:
        """Return the loss at the master weights, in nats per predicted token. The next `train` loads its own weights again."""
        self._optimizer.load_masters()
        return self._micro_batch.loss(samples)

    def load_masters(self) -> None:
        """Write the masters into the model's own weights, for code that uses the model after training."""
        self._optimizer.load_masters()

    def full_digest(self) -> bytes:
        """Return the digest of masters and public state, 32 bytes, see `shared_tensors.shared_digest`."""
        return shared_digest(self._optimizer)

    @property
    def table(self) -> Table:
        """Names and shapes of masters and public state. A manifest of this run's model must have the same."""
        return snapshot.table_of(shared_tensors(self._optimizer))

    def read_piece(self, piece: Piece) -> bytes:
        """Return the bytes of one piece of masters or public state, little-endian float32."""
        return snapshot.read_piece(shared_tensors(self._optimizer), piece)

    def differing(self, manifest: Manifest) -> tuple[int, ...]:
        """Return the numbers of the pieces in which our model differs from a manifest. Raises ModelError for another table."""
        return snapshot.differing(shared_tensors(self._optimizer), manifest)

    def install(self, manifest: Manifest, pieces: Mapping[int, bytes | memoryview]) -> None:
        """Replace masters and public state by a manifest's and discard private state, or change nothing and raise ModelError.

        pieces: fetched bytes by number of the piece, at least those of `differing`; the mapping may read them from disk. Raises
        ModelHalfReplaced if a piece could not be read while the masters were being replaced.
        """
        snapshot.install(self._optimizer, manifest, pieces)

    def save_private(self, path: Path) -> None:
        """Write the private state of this replica's optimizer to a file, for its own next start. Raises ModelError."""
        state = {} if self._checked else self._optimizer.private_state()
        if state:
            save_private(path, state, masters=self.full_digest())

    def load_private(self, path: Path) -> bool:
        """Load the private state that was saved with exactly this model. Returns whether there was one.

        Raises ModelError; then nothing has changed.
        """
        state = None if self._checked else load_private(path, masters=self.full_digest())
        if state is not None:
            self._optimizer.load_private_state(state)
        return state is not None

    def save(self, directory: Path) -> None:
        """Write a self-contained checkpoint of the masters, and of the public state if any, atomically. Raises ModelError."""

        def write(folder: Path) -> None:
            self._model.save(folder, parameters=self._optimizer.masters)

        state = self._optimizer.public_state
        if state:
            save_with_public_state(directory, state, write=write)
        else:
            write(directory)

    def close(self) -> None:
        """End the model's other processes, if it has any. Idempotent."""
        self._model.close()
