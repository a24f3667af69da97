"""What this plugin registers: optimizer `Distro`, sharding `deepspeed`. Factories import torch, this module does not."""

from __future__ import annotations

from psyche_core.hookspecs import OptimizerRegistration, ShardingContext, ShardingRegistration, hookimpl
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.sharding import ShardingEngine
from psyche_optim_distro.settings import DistroSettings

PSYCHE_PLUGIN_API = "1.0"


def create(settings: DistroSettings, model: Model) -> Optimizer:
    """Build the optimizer of `model`; the masters start as the model's compute weights."""
    from psyche_optim_distro.optimizer import DistroOptimizer

    return DistroOptimizer(settings, model)


def create_deepspeed_engine(context: ShardingContext) -> ShardingEngine:
    """Divide a model with DeepSpeed's AutoTP."""
    from psyche_optim_distro.sharding.deepspeed import DeepSpeedEngine

    return DeepSpeedEngine(context)


@hookimpl
def psyche_register_optimizers() -> list[OptimizerRegistration]:
    """The optimizer `Distro`."""
    return [
        OptimizerRegistration(
            name="Distro",
            summary="DisTrO: DCT chunks, top-k, one bit per coefficient, bit-exact on every replica",
            settings=DistroSettings,
            create=create,
        )
    ]


@hookimpl
def psyche_register_sharding() -> list[ShardingRegistration]:
    """The sharding `deepspeed`."""
    summary = "DeepSpeed's AutoTP: tensor parallelism for Llama, Qwen2 and Qwen3"
    return [ShardingRegistration(name="deepspeed", summary=summary, create=create_deepspeed_engine)]
