"""Build a client's trainer from the run's `[model]` table and the registry of plugins.

Decided here: every member of a run that starts from random weights draws them from SHA-256 of the run id. A checkpoint is read
from a local directory only; nothing is downloaded. A checkpoint of kind P2P names the directory that says what the model is built
like; its weights (or random ones) are a starting point only, which the client replaces by those of the other members.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from psyche_core.coordinator.schedule import cold_start_factor, learning_rate
from psyche_core.errors import ConfigError, ModelError
from psyche_core.hookspecs import ModelContext, ModelRegistration, OptimizerRegistration, Registration
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.run_config import Choice, LLMConfig, ModelConfig
from psyche_core.sentences import sentences
from psyche_core.training.trainer import Trainer

RegistryLoad = Callable[[str, str], Registration]


def build_trainer(
    *,
    registry_load: RegistryLoad,
    model_config: ModelConfig,
    run_id: str,
    base: Path,
    device: str = "auto",
    dtype: str = "float32",
    micro_batch_size: int = 1,
    cold_start_bounds: Callable[[], tuple[int, int] | None] = lambda: None,
) -> Trainer:
    """The trainer of a run; reads the checkpoint and may take seconds, so call it in a worker thread.

    registry_load: (kind, name) -> registration. base: folder that a relative checkpoint directory starts from. device, dtype:
    see ModelContext. cold_start_bounds: the current epoch's `schedule.cold_start_bounds`; called for every rate, from the
    trainer's thread.
    Raises ModelError, ConfigError for optimizer settings, and what registry_load raises.
    """
    llm = model_config.LLM
    model = _build_model(registry_load, llm, run_id=run_id, base=base, device=device, dtype=dtype)
    return Trainer(
        model=model,
        optimizer=_build_optimizer(registry_load, llm.optimizer, model),
        learning_rate=_rates(llm, cold_start_bounds),
        micro_batch_size=micro_batch_size,
    )


def model_seed(run_id: str) -> bytes:
    """32 bytes that random weights are drawn from."""
    return hashlib.sha256(b"psyche/model-seed" + run_id.encode()).digest()


def checkpoint_directory(checkpoint: Choice, *, base: Path) -> Path:
    """The local directory a run's checkpoint names. Raises ModelError where there is none."""
    if checkpoint.name not in ("Hub", "P2P"):
        message = (
            f"a checkpoint of kind {checkpoint.name} cannot be read in this version; "
            'write checkpoint = { Hub = { repo_id = "directory" } } with a local directory that holds config.json'
        )
        raise ModelError(message)

    settings = checkpoint.settings or {}
    directory: Path = base / settings["repo_id"]
    if not directory.is_dir():
        message = (
            f"the checkpoint {settings['repo_id']} is no directory under {base}, and only local directories can be read in this "
            "version; download the repository there and write the directory as repo_id"
        )
        raise ModelError(message)
    if "revision" in settings:
        message = f"the checkpoint {settings['repo_id']} is a local directory, which has no revision; remove that key"
        raise ModelError(message)
    return directory


def _build_model(registry_load: RegistryLoad, llm: LLMConfig, *, run_id: str, base: Path, device: str, dtype: str) -> Model:
    registration = registry_load("model", llm.architecture)
    if not isinstance(registration, ModelRegistration):
        message = f"registry_load('model', …) must give a ModelRegistration, got {type(registration).__name__}"
        raise TypeError(message)

    source = checkpoint_directory(llm.checkpoint, base=base)
    context = ModelContext(source=source, max_seq_len=llm.max_seq_len, seed=model_seed(run_id), device=device, dtype=dtype)
    return registration.create(context)


def _build_optimizer(registry_load: RegistryLoad, choice: Choice, model: Model) -> Optimizer:
    registration = registry_load("optimizer", choice.name)
    if not isinstance(registration, OptimizerRegistration):
        message = f"registry_load('optimizer', …) must give an OptimizerRegistration, got {type(registration).__name__}"
        raise TypeError(message)

    try:
        settings = registration.settings.model_validate(choice.settings or {})
    except ValidationError as error:
        where = f"model.LLM.optimizer.{choice.name}"
        raise ConfigError("\n".join(sentences(error, registration.settings, where=where))) from error

    return registration.create(settings, model)


def _rates(llm: LLMConfig, cold_start_bounds: Callable[[], tuple[int, int] | None]) -> Callable[[int], float]:
    """Learning rate by step: the schedule, times the cold-start factor in an epoch that started cold."""

    def rate(step: int) -> float:
        return learning_rate(llm.lr_schedule, step) * cold_start_factor(step, cold_start_bounds())

    return rate
