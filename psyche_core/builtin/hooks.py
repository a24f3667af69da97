"""The plugins included in psyche-core, registered through the same hooks as all others.

Nothing heavy is imported before its factory is called. Settings classes need no torch, so that a server can check a run
configuration without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_core import hookspecs
from psyche_core.errors import ModelError, PluginError

if TYPE_CHECKING:
    from psyche_core.interfaces import Backend, DataProvider, Model, Optimizer, ShardingEngine, Transport

PSYCHE_PLUGIN_API = "1.0"

_TRAIN_EXTRA = "training needs torch and transformers; install them with: pip install 'psyche-core[train]'"


@hookspecs.hookimpl
def psyche_register_backends() -> list[hookspecs.BackendRegistration]:
    """The backend inside one process."""
    summary = "coordinator inside one process, for tests and embedding"
    return [hookspecs.BackendRegistration(name="memory", summary=summary, create=_create_memory_backend)]


@hookspecs.hookimpl
def psyche_register_transports() -> list[hookspecs.TransportRegistration]:
    """The transport inside one process."""
    summary = "payloads between clients of one process, for tests and embedding"
    return [hookspecs.TransportRegistration(name="memory", summary=summary, create=_create_memory_transport)]


@hookspecs.hookimpl
def psyche_register_data() -> list[hookspecs.DataRegistration]:
    """Token files, prepared samples and dummy tokens."""
    from psyche_core.builtin.local_data import LocalSettings
    from psyche_core.builtin.preprocessed_data import PreprocessedSettings

    return [
        hookspecs.DataRegistration(name="Dummy", summary="made-up tokens, for tests", settings=None, create=_create_dummy_data),
        hookspecs.DataRegistration(
            name="Local", summary="token files in a folder", settings=LocalSettings, create=_create_local_data
        ),
        hookspecs.DataRegistration(
            name="Preprocessed",
            summary="samples in Parquet files, from a folder or the hub",
            settings=PreprocessedSettings,
            create=_create_preprocessed_data,
        ),
    ]


@hookspecs.hookimpl
def psyche_register_models() -> list[hookspecs.ModelRegistration]:
    """Hugging Face models."""
    return [
        hookspecs.ModelRegistration(name=name, summary=summary, create=create, parallel=True)
        for name, summary, create in (
            ("HfLlama", "Llama models of transformers", _create_llama),
            ("HfDeepseek", "DeepSeek V2 and V3 models of transformers", _create_deepseek),
            ("HfAuto", "any causal language model of transformers", _create_auto),
        )
    ]


@hookspecs.hookimpl
def psyche_register_optimizers() -> list[hookspecs.OptimizerRegistration]:
    """The dense baseline, and one that does nothing."""
    from psyche_core.builtin.adamw_settings import AdamWSettings
    from psyche_core.builtin.dummy_settings import DummySettings

    summary = "dense AdamW directions, averaged: the baseline, 2 bytes a parameter"
    return [
        hookspecs.OptimizerRegistration(name="AdamW", summary=summary, settings=AdamWSettings, create=_create_adamw),
        hookspecs.OptimizerRegistration(
            name="Dummy", summary="changes nothing, to try a network", settings=DummySettings, create=_create_dummy_optimizer
        ),
    ]


@hookspecs.hookimpl
def psyche_register_sharding() -> list[hookspecs.ShardingRegistration]:
    """Torch's own way to divide a model."""
    summary = "torch's DTensor and FSDP2: Llama, Qwen2, Qwen3 and DeepSeek-V3; data parallelism for any model"
    return [hookspecs.ShardingRegistration(name="dtensor", summary=summary, create=_create_dtensor_engine)]


def _create_memory_backend(context: hookspecs.BackendContext) -> Backend:
    message = (
        f"the memory backend lives inside one process and has no address to connect to, got {context.address!r}; "
        "embed psyche_core.builtin.memory_backend, or choose another backend such as tcp"
    )
    raise PluginError(message)


def _create_memory_transport(context: hookspecs.TransportContext) -> Transport:
    from psyche_core.builtin.memory_transport import MemoryTransport

    return MemoryTransport.from_context(context)


def _create_dummy_data(context: hookspecs.DataContext) -> DataProvider:
    from psyche_core.builtin.dummy_data import DummyData

    return DummyData.from_context(context)


def _create_local_data(context: hookspecs.DataContext) -> DataProvider:
    from psyche_core.builtin.local_data import LocalData

    return LocalData.from_context(context)


def _create_preprocessed_data(context: hookspecs.DataContext) -> DataProvider:
    from psyche_core.builtin.preprocessed_data import PreprocessedData

    return PreprocessedData.from_context(context)


def _create_llama(context: hookspecs.ModelContext) -> Model:
    try:
        from psyche_core.builtin.hf_models import create_llama
    except ModuleNotFoundError as error:
        raise ModelError(_TRAIN_EXTRA) from error

    return create_llama(context)


def _create_deepseek(context: hookspecs.ModelContext) -> Model:
    try:
        from psyche_core.builtin.hf_models import create_deepseek
    except ModuleNotFoundError as error:
        raise ModelError(_TRAIN_EXTRA) from error

    return create_deepseek(context)


def _create_auto(context: hookspecs.ModelContext) -> Model:
    try:
        from psyche_core.builtin.hf_models import create_auto
    except ModuleNotFoundError as error:
        raise ModelError(_TRAIN_EXTRA) from error

    return create_auto(context)


def _create_adamw(context: hookspecs.OptimizerContext) -> Optimizer:
    from psyche_core.builtin.adamw import AdamW

    return AdamW(context.settings, context.model)


def _create_dummy_optimizer(context: hookspecs.OptimizerContext) -> Optimizer:
    from psyche_core.builtin.dummy_optimizer import DummyOptimizer

    return DummyOptimizer(context.model)


def _create_dtensor_engine(context: hookspecs.ShardingContext) -> ShardingEngine:
    from psyche_core.models.sharding.dtensor import DTensorEngine

    return DTensorEngine(context)
