"""What decides how a member trains: registrations of optimizers, data locations, models, and ways to divide a model.

The hooks are in the package's `__init__`, from which all of these names are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from psyche_core.interfaces import (
    DataProvider,
    Model,
    Optimizer,
    OptimizerPart,
    OptimizerParts,
    RankGroup,
    ShardingEngine,
)
from psyche_core.wire.signing import SecretKey


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerContext:
    """The arguments for building an optimizer.

    Attributes:
        settings: validated by the registration's `settings`.
        model: the model to train; its parameters are float32 and equal on all members.
    """

    settings: Any
    model: Model


@dataclass(frozen=True, slots=True, kw_only=True)
class PartContext:
    """The arguments for building a rank's part of an optimizer.

    Attributes:
        settings: validated by the registration's `settings`, equal on all ranks.
        shapes: of the whole model's parameters, by name, ascending.
        number: of the rank, from 0.
        parts: number of ranks.
        device: this rank's torch device.
    """

    settings: Any
    shapes: Mapping[str, tuple[int, ...]]
    number: int
    parts: int
    device: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisionContext:
    """The arguments for building an optimizer whose state is divided among ranks.

    Attributes:
        settings, model: as in OptimizerContext. The model's weights and gradients are whole, on rank 0.
        parts: what the registration's `create_part` made on each rank.
    """

    settings: Any
    model: Model
    parts: OptimizerParts


def _not_said(_: Any) -> str | None:
    return "its plugin does not say that others can recompute it"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRegistration:
    """A decentralised optimizer. settings validates `model.LLM.optimizer.<Name>`.

    why_unverifiable: for validated settings, why others cannot recompute what is trained with them, as the end of a sentence;
    None if they can, which `Replay.verifiable` says too. Runs with `verification_percent` above 0 refuse the others.

    create_part, divide: both, for an optimizer whose state can be divided among the ranks of one client: `create_part` makes one
    rank's part, `divide` the optimizer on rank 0. Its payloads, masters and public state must be those of `create`'s, bit for
    bit if it is exact. Without them rank 0 has the whole optimizer, as in runs whose shares are checked.
    """

    name: str
    summary: str
    settings: type[BaseModel]
    create: Callable[[OptimizerContext], Optimizer]
    why_unverifiable: Callable[[Any], str | None] = _not_said
    create_part: Callable[[PartContext], OptimizerPart] | None = None
    divide: Callable[[DivisionContext], Optimizer] | None = None
    requires: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataContext:
    """The arguments for building a data provider.

    Attributes:
        settings: the location's validated settings.
        sequence_length: the run's max_seq_len in tokens.
        key: our identity, for servers that require authentication.
        base: folder that relative paths start from: the run file's folder, or the one a member gives.
        cache: folder for files to keep between runs.
        provider: makes the provider of another data location from its name and its settings as in the run file, for locations
            that combine others; raises PluginError and ConfigError. None if no other locations are available, as inside such a
            combination.
    """

    settings: Any
    sequence_length: int
    key: SecretKey | None = None
    base: Path = field(default_factory=Path)
    cache: Path | None = None
    provider: Callable[[str, Any], DataProvider] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRegistration:
    """A data location. settings validates `data_location.<Name>`; a bare string `X = "…"` arrives as {"location": "…"}."""

    name: str
    summary: str
    settings: type[BaseModel] | None
    create: Callable[[DataContext], DataProvider]
    requires: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How many processes (ranks) of one client share a model, and how they connect.

    Attributes:
        data: number of data-parallel groups, each with its own rows.
        tensor: number of ranks in a group, which share its weights. There are data * tensor ranks, ours included.
        sharding: plugin name of the engine.
        bind: HOST:PORT where ranks on other machines connect; None allows none.
        local_ranks: how many of the ranks run on this machine, ours included; None for all of them.
        secret: shared secret that a connecting rank must know; None makes one, for this machine alone.
        torch_threads: threads of each rank; None means one on a CPU and torch's default elsewhere.
    """

    data: int = 1
    tensor: int = 1
    sharding: str = "dtensor"
    bind: str | None = None
    local_ranks: int | None = None
    secret: bytes | None = field(default=None, repr=False)
    torch_threads: int | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.data * self.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContext:
    """The arguments for building a model. A model that cannot follow one of these settings must raise ModelError.

    Attributes:
        source: local directory with config.json and, unless the run starts from random weights, safetensors.
        seed: 32 bytes for random weights.
        device: `auto`, `cpu`, `mps`, `cuda`, `cuda:N`, or `cuda:X,Y` for several devices that share each batch.
        dtype: compute dtype; parameters are float32 in any case, so that members with different compute dtypes start from equal
            masters.
        attention: `auto`, `sdpa` or `eager`; ignored by a model without attention.
        gradient_checkpointing: recompute activations in the backward pass instead of keeping them.
        parallelism: the processes among which the model is divided; None for this process alone, and always None for a model
            whose registration does not set `parallel`.
        create_engine: makes this process's sharding engine.
    """

    source: Path
    max_seq_len: int
    seed: bytes
    device: str = "auto"
    dtype: str = "float32"
    attention: str = "auto"
    gradient_checkpointing: bool = False
    parallelism: Parallelism | None = None
    create_engine: Callable[[ShardingContext], ShardingEngine] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRegistration:
    """A model architecture.

    Attributes:
        parallel: whether `create` can divide it among processes (ModelContext.parallelism).
        source: folder from which a member builds its model instead of the run's checkpoint, for a model that brings its own first
            weights; it may be empty. A checkpoint saved by the member still takes precedence (ModelContext.source is then its
            folder).
    """

    name: str
    summary: str
    create: Callable[[ModelContext], Model]
    parallel: bool = False
    source: Path | None = None
    requires: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingContext:
    """The arguments for building a rank's sharding engine.

    Attributes:
        module: a torch module on the CPU, float32, built in the same way on every rank. Its buffers have their values; its
            parameters are not initialised (their memory is not touched yet). The engine may change the module.
        model_type: its architecture, as transformers names it.
        group: all ranks.
        device: this rank's torch device.
    """

    module: Any
    model_type: str
    group: RankGroup
    device: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingRegistration:
    """A way to divide a model among processes. All ranks call `create` at the same time."""

    name: str
    summary: str
    create: Callable[[ShardingContext], ShardingEngine]
    requires: Mapping[str, str] = field(default_factory=dict)
