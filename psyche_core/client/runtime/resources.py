"""What a worker works with: the trainer, the data, and the place where models are stored.

They are protocols, so that tests and embedders bring their own and this module needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from psyche_core.client.model_sync.exchange import ModelHolder
from psyche_core.config.run_config import Choice
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.interfaces import DataProvider
from psyche_core.interfaces.data import Samples
from psyche_core.training.checkpoints.journal import Journal


class TrainedShare(Protocol):
    """What training a share gives."""

    @property
    def loss(self) -> float:
        """Mean over the share, in nats per token."""

    @property
    def tokens(self) -> int:
        """Tokens in the share."""

    @property
    def seconds(self) -> float:
        """Wall time."""

    @property
    def payload(self) -> bytes:
        """The encoded result."""


class TrainerLike(ModelHolder, Protocol):
    """What the worker needs of a trainer; psyche_core.training.trainer.Trainer is one."""

    @property
    def max_payload_bytes(self) -> int:
        """No valid payload is longer."""

    @property
    def parameter_count(self) -> int:
        """Trainable values."""

    @property
    def description(self) -> Mapping[str, bytes]:
        """The small files that say how the model is built; empty where it cannot be described so."""

    def train(self, step: int, samples: Samples) -> TrainedShare:
        """Train one share at the look-ahead weights."""

    def rate_of(self, step: int) -> float:
        """The learning rate with which the results of a step are applied now."""

    def apply(self, step: int, payloads: Sequence[bytes], *, own_accepted: bool, learning_rate: float | None = None) -> None:
        """Apply a step's accepted payloads to the masters. learning_rate: None for that of `rate_of`."""

    def forget(self) -> None:
        """Keep the masters and forget everything else, results that wait to be settled included."""

    def check(self, payload: bytes) -> None:
        """Raise PayloadRejected for a payload that does not fit; callable beside the others."""

    def evaluate(self, samples: Samples) -> float:
        """Mean loss at the masters, in nats per token."""

    def save(self, directory: Path) -> None:
        """Write a checkpoint."""

    def save_private(self, path: Path) -> None:
        """Write what only our optimizer has, for our own next start."""


class ModelStore(Protocol):
    """A place that keeps models for the run; psyche_core.training.checkpoints.stores has some."""

    async def put(self, directory: Path, *, run_id: str, step: int) -> Choice:
        """Store a checkpoint's folder whole; its location as a run configuration says it. Raises StoreError."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a bench is built for.

    state: of the run. fresh: with the model that the run's checkpoint names, whatever we saved ourselves. folder: what the other
    members say the model is built like, its weights still to come; None to find the model on this machine or where the run says.
    """

    state: CoordinatorState
    fresh: bool = False
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """What is needed to work on a run. checkpoints: folder that checkpoints go to; None saves nothing.

    step: the last one whose results are in the trainer's masters; None for the model the run's checkpoint names. stored_step: the
    one that this model says it is of. journal: of the rounds since the last checkpoint; None keeps none. held: steps and full
    digests of the signed epoch ends that lie in `checkpoints`, where the masters are not up to date. optimizer_name, data_name:
    what their plugins are called in sentences.
    """

    trainer: TrainerLike
    data: DataProvider
    validation: Samples | None = None
    checkpoints: Path | None = None
    keep_checkpoints: Callable[[Path], None] | None = None
    step: int | None = None
    stored_step: int | None = None
    journal: Journal | None = None
    held: tuple[tuple[int, bytes], ...] = ()
    optimizer_name: str = "the optimizer"
    data_name: str = "the data provider"
