"""What this plugin registers: the optimizer `Distro`. torch is imported by the factory, not here."""

from __future__ import annotations

from psyche_core.hookspecs import OptimizerRegistration, hookimpl
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_optim_distro.settings import DistroSettings

PSYCHE_PLUGIN_API = "1.0"


def create(settings: DistroSettings, model: Model) -> Optimizer:
    """Build the optimizer of `model`; the masters start as the model's compute weights."""
    from psyche_optim_distro.optimizer import DistroOptimizer

    return DistroOptimizer(settings, model)


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
