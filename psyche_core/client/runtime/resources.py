"""A worker's resources: trainer and data. The store for models is a `storage.model_stores.interface.CheckpointStore`.

Trainer and share are protocols, so that tests and other programs can use their own, and this module does not need torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from psyche_core.client.model_sync.described_snapshot import DescribedModel
from psyche_core.client.runtime.reports.step_observer import StepObserver
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.interfaces import DataProvider
from psyche_core.interfaces.data import Samples
from psyche_core.training.checkpoints.journal.journal import Journal


class TrainedShare(Protocol):
    """The result of training a share."""

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

    @property
    def learning_rate(self) -> float:
        """The schedule's learning rate at this step."""

    @property
    def gradient_norm(self) -> float:
        """L2 norm of the share's gradient."""

    @property
    def compress_seconds(self) -> float:
        """Wall time of making the result from gradients; included in `seconds`."""


class TrainerLike(DescribedModel, Protocol):
    """Interface of the worker's trainer; psyche_core.training.trainer.Trainer implements it."""

    @property
    def vocab_size(self) -> int:
        """Size of the model's vocabulary."""

    @property
    def max_payload_bytes(self) -> int:
        """Upper bound for the size of valid payloads."""

    @property
    def parameter_count(self) -> int:
        """Number of trainable values."""

    def train(self, step: int, samples: Samples) -> TrainedShare:
        """Train one share at the look-ahead weights."""

    def rate_of(self, step: int) -> float:
        """Return the learning rate with which the results of a step are to be applied now."""

    def apply(self, step: int, payloads: Sequence[bytes], *, own_accepted: bool, learning_rate: float | None = None) -> None:
        """Apply a step's accepted payloads to the master weights. learning_rate: None for that of `rate_of`."""

    def forget(self) -> None:
        """Keep the master weights and forget everything else, including results that are not settled yet."""

    def check(self, payload: bytes) -> None:
        """Raise PayloadRejected for an invalid payload. May run concurrently with the other methods."""

    def positions(self, payload: bytes) -> Any | None:
        """See Trainer.positions."""

    def evaluate(self, samples: Samples) -> float:
        """Return the mean loss at the master weights, in nats per token."""

    def save(self, directory: Path) -> None:
        """Write a checkpoint."""

    def save_private(self, path: Path) -> None:
        """Write our optimizer's private state, which only our own next start uses."""


@dataclass(frozen=True, slots=True)
class ResourcesRequest:
    """The purpose for which resources are built.

    state: of the run. fresh: use the model that the run's checkpoint names, even if we saved one ourselves. folder: the model's
    description from other members, without weights; None to find the model on this machine or where the run's configuration says.
    """

    state: CoordinatorState
    fresh: bool = False
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources for work on a run.

    checkpoints: folder for checkpoints; None saves nothing. step: the last step whose results are in the trainer's master
    weights; None for the model that the run's checkpoint names. stored_step: the step that this model says it has. journal: of
    the rounds since the last checkpoint; None keeps none. published: folder for copies of finished journals; None publishes none.
    held: steps and full digests of the signed epoch ends in `checkpoints`, if the master weights are not up to date.
    optimizer_name, data_name: names of their plugins in messages. training_delay: seconds to wait after each computed step, for
    tests. observer: records the trainer's steps.
    """

    trainer: TrainerLike
    data: DataProvider
    validation: Samples | None = None
    checkpoints: Path | None = None
    keep_checkpoints: Callable[[Path], None] | None = None
    step: int | None = None
    stored_step: int | None = None
    journal: Journal | None = None
    published: Path | None = None
    held: tuple[tuple[int, bytes], ...] = ()
    optimizer_name: str = "the optimizer"
    data_name: str = "the data provider"
    training_delay: float = 0.0
    observer: StepObserver = field(default_factory=StepObserver)
