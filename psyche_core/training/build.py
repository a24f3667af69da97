"""Build a client's trainer from the run's `[model]` table and the registry of plugins.

If a run starts from random weights, all members draw them with the same seed, a SHA-256 of the run id. The caller provides the
model's folder, which `checkpoints.initial_model` finds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from psyche_core.config.run_config import Choice, LLMConfig, ModelConfig
from psyche_core.config.sentences import validated
from psyche_core.coordinator.learning_rate import cold_start_factor, learning_rate
from psyche_core.errors import ConfigError, ModelError
from psyche_core.hookspecs import (
    DivisionContext,
    ModelContext,
    ModelRegistration,
    OptimizerContext,
    OptimizerRegistration,
    Parallelism,
    Registration,
    ShardingRegistration,
)
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.training.checkpoints.public_state import load_public_state
from psyche_core.training.micro_batch import NO_AUTO, Notice, find_micro_batch_size
from psyche_core.training.trainer import Trainer

RegistryLoad = Callable[[str, str], Registration]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """How this member computes. No field changes results, except for rounding. ModelContext describes the other fields.

    micro_batch_size: sequences per forward pass, or `auto` for as many as fit. parallelism: how the model is divided among
    processes, None to use only this process. notice: called with a sentence, in the trainer's thread, when the micro-batch size
    has to become smaller.
    """

    device: str = "auto"
    dtype: str = "float32"
    attention: str = "auto"
    gradient_checkpointing: bool = False
    micro_batch_size: int | Literal["auto"] = 1
    parallelism: Parallelism | None = None
    notice: Notice = lambda _: None


def build_trainer(
    *,
    registry_load: RegistryLoad,
    model_config: ModelConfig,
    run_id: str,
    source: Path,
    compute: Compute | None = None,
    cold_start_bounds: Callable[[], tuple[int, int] | None] = lambda: None,
    checked: bool = False,
) -> Trainer:
    """Build the trainer of a run. This reads the checkpoint and may take seconds, so call it in a worker thread.

    registry_load: returns the registration for (kind, name). source: folder with config.json and, unless the run starts from
    random weights, safetensors; the optimizer's public state is also taken from there. cold_start_bounds: returns
    `schedule.cold_start_bounds` of the current epoch; called for every rate, in the trainer's thread. checked: whether others
    check the run's shares.

    Raises ModelError, ConfigError for wrong optimizer settings, for those whose results cannot be checked, or for a divided model
    with micro_batch_size `auto`, TypeError for a registration of the wrong kind, and the errors of registry_load.
    """
    llm, compute = model_config.LLM, compute or Compute()
    if compute.parallelism is not None and compute.micro_batch_size == "auto":
        raise ConfigError(NO_AUTO)
    optimizer_settings(registry_load, llm.optimizer)  # before the model is loaded, which may take minutes
    model = build_model(registry_load, llm, compute, run_id=run_id, source=source)
    try:
        optimizer = build_optimizer(registry_load, llm.optimizer, model, divided=not checked)
        if checked:
            _expect_verifiable(optimizer, llm.optimizer.name)
        load_public_state(optimizer, source)
    except BaseException:
        model.close()
        raise
    size = compute.micro_batch_size
    return Trainer(
        model=model,
        optimizer=optimizer,
        learning_rate=_rates(llm, cold_start_bounds),
        micro_batch_size=find_micro_batch_size(model, sequence_length=llm.max_seq_len) if size == "auto" else size,
        notice=compute.notice,
        checked=checked,
    )


def _expect_verifiable(optimizer: Optimizer, name: str) -> None:
    replay = optimizer.replay
    if replay is None or not replay.verifiable:
        message = (
            f"this run checks shares (verification_percent), and what {name} trains with its settings cannot be recomputed by "
            "others; the run's owner has to set verification_percent to 0 or to change them"
        )
        raise ConfigError(message)


def model_seed(run_id: str) -> bytes:
    """Return the seed (32 bytes) from which random weights are drawn."""
    return hashlib.sha256(b"psyche/model-seed" + run_id.encode()).digest()


def build_model(registry_load: RegistryLoad, llm: LLMConfig, compute: Compute, *, run_id: str, source: Path) -> Model:
    """Build only the model, see `build_trainer`. Raises ModelError, TypeError, and the errors of registry_load."""
    registration = registry_load("model", llm.architecture)
    if not isinstance(registration, ModelRegistration):
        message = f"registry_load('model', …) must give a ModelRegistration, got {type(registration).__name__}"
        raise TypeError(message)

    parallelism, create_engine = compute.parallelism, None
    if parallelism is not None:
        if not registration.parallel:
            message = f"architecture {llm.architecture} cannot be divided among processes; leave out --data-parallelism and "
            raise ModelError(message + "--tensor-parallelism")
        sharding = registry_load("sharding", parallelism.sharding)
        if not isinstance(sharding, ShardingRegistration):
            message = f"registry_load('sharding', …) must give a ShardingRegistration, got {type(sharding).__name__}"
            raise TypeError(message)
        create_engine = sharding.create

    context = ModelContext(
        source=source,
        max_seq_len=llm.max_seq_len,
        seed=model_seed(run_id),
        device=compute.device,
        dtype=compute.dtype,
        attention=compute.attention,
        gradient_checkpointing=compute.gradient_checkpointing,
        parallelism=parallelism,
        create_engine=create_engine,
    )
    return registration.create(context)


def build_optimizer(registry_load: RegistryLoad, choice: Choice, model: Model, *, divided: bool = False) -> Optimizer:
    """Build only the optimizer of a model. Raises the errors of `optimizer_settings`, and RanksLost.

    divided: whether its state may be divided among the processes that compute the model, if the optimizer's plugin supports it.
    What others check is recomputed from whole masters, so a run whose shares are checked must not say so.
    """
    registration, settings = optimizer_settings(registry_load, choice)
    if divided and registration.create_part is not None and registration.divide is not None:
        parts = model.optimizer_parts(choice.name, settings=settings, create_part=registration.create_part)
        if parts is not None:
            return registration.divide(DivisionContext(settings=settings, model=model, parts=parts))
    return registration.create(OptimizerContext(settings=settings, model=model))


def optimizer_settings(registry_load: RegistryLoad, choice: Choice) -> tuple[OptimizerRegistration, BaseModel]:
    """Return the optimizer's registration and checked settings.

    Raises ConfigError, TypeError, and the errors of registry_load.
    """
    registration = registry_load("optimizer", choice.name)
    if not isinstance(registration, OptimizerRegistration):
        message = f"registry_load('optimizer', …) must give an OptimizerRegistration, got {type(registration).__name__}"
        raise TypeError(message)

    settings = validated(registration.settings, choice.settings or {}, where=f"model.LLM.optimizer.{choice.name}")
    return registration, settings


def _rates(llm: LLMConfig, cold_start_bounds: Callable[[], tuple[int, int] | None]) -> Callable[[int], float]:
    """Return the function that gives the learning rate of a step: the schedule, times the cold-start factor of the epoch."""

    def rate(step: int) -> float:
        return learning_rate(llm.lr_schedule, step) * cold_start_factor(step, cold_start_bounds())

    return rate
