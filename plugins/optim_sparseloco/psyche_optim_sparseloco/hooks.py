"""Registers the optimizer `SparseLoCo`. The factory imports torch; this module does not."""

from __future__ import annotations

from psyche_core.hookspecs import OptimizerContext, OptimizerRegistration, hookimpl
from psyche_core.interfaces.optimizer import Optimizer
from psyche_optim_sparseloco.settings import SparseLoCoSettings

PSYCHE_PLUGIN_API = "1.0"


def create(context: OptimizerContext) -> Optimizer:
    """Build a model's optimizer. The masters start as the model's compute weights."""
    from psyche_optim_sparseloco.optimizer import SparseLoCo

    return SparseLoCo(context.settings, context.model)


@hookimpl
def psyche_register_optimizers() -> list[OptimizerRegistration]:
    """Register the optimizer `SparseLoCo`."""
    return [
        OptimizerRegistration(
            name="SparseLoCo",
            summary="SparseLoCo: many local steps a result, top-k with error feedback, two bits a value, bit-exact",
            settings=SparseLoCoSettings,
            create=create,
        )
    ]
