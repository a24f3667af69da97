"""Registers the optimizer `Distro` and the sharding engine `deepspeed`. The factories import torch; this module does not."""

from __future__ import annotations

from psyche_core.hookspecs import (
    DivisionContext,
    OptimizerContext,
    OptimizerRegistration,
    PartContext,
    ShardingContext,
    ShardingRegistration,
    hookimpl,
)
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.optimizer_parts import OptimizerPart
from psyche_core.interfaces.sharding import ShardingEngine
from psyche_optim_distro.settings import DistroSettings

PSYCHE_PLUGIN_API = "1.0"


def create(context: OptimizerContext) -> Optimizer:
    """Build a model's optimizer. The masters start as the model's compute weights."""
    from psyche_optim_distro.optimizer import DistroOptimizer

    return DistroOptimizer(context.settings, context.model)


def create_part(context: PartContext) -> OptimizerPart:
    """Build one rank's part of a divided optimizer."""
    from psyche_optim_distro.division.part import DistroPart

    return DistroPart(context.settings, context.shapes, number=context.number, parts=context.parts, device=context.device)


def divide(context: DivisionContext) -> Optimizer:
    """Build the optimizer on rank 0 whose parts are on the ranks; a whole one for a model without elements."""
    from psyche_core.interfaces.parameters import shapes_of
    from psyche_optim_distro.division.divided import DividedDistro
    from psyche_optim_distro.division.table import part_tables

    settings, shapes = context.settings, shapes_of(context.model.parameters)
    cut = {"chunk": settings.compression_chunk, "topk": settings.compression_topk}
    if tables := part_tables(shapes, **cut, parts=context.parts.count):
        return DividedDistro(settings, context.model, context.parts, tables=tables)
    return create(OptimizerContext(settings=settings, model=context.model))


def create_deepspeed_engine(context: ShardingContext) -> ShardingEngine:
    """Shard a model with DeepSpeed's AutoTP. Raises ModelError."""
    from psyche_optim_distro.sharding.deepspeed import DeepSpeedEngine

    return DeepSpeedEngine(context)


@hookimpl
def psyche_register_optimizers() -> list[OptimizerRegistration]:
    """Register the optimizer `Distro`."""
    return [
        OptimizerRegistration(
            name="Distro",
            summary="DisTrO: DCT chunks, top-k, one bit per coefficient, bit-exact on every replica",
            settings=DistroSettings,
            create=create,
            why_unverifiable=DistroSettings.why_unverifiable,
            create_part=create_part,
            divide=divide,
        )
    ]


@hookimpl
def psyche_register_sharding() -> list[ShardingRegistration]:
    """Register the sharding engine `deepspeed`."""
    summary = "DeepSpeed's AutoTP: tensor parallelism for Llama, Qwen2 and Qwen3"
    requires = {"deepspeed": "pip install 'psyche-core[deepspeed]'"}
    return [ShardingRegistration(name="deepspeed", summary=summary, create=create_deepspeed_engine, requires=requires)]
