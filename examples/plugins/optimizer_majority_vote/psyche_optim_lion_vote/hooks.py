"""Registers the optimizer `LionVote`. torch is imported when a run builds one, not before."""

from __future__ import annotations

from psyche_core.hookspecs import OptimizerContext, OptimizerRegistration, hookimpl
from psyche_core.interfaces import Optimizer
from psyche_optim_lion_vote.settings import LionVoteSettings

PSYCHE_PLUGIN_API = "1.0"


@hookimpl
def psyche_register_optimizers() -> list[OptimizerRegistration]:
    """One optimizer."""
    summary = "Lion's signs and a majority vote over members, one bit a parameter"
    return [OptimizerRegistration(name="LionVote", summary=summary, settings=LionVoteSettings, create=create)]


def create(context: OptimizerContext) -> Optimizer:
    """The optimizer of a model; context.settings is a validated LionVoteSettings."""
    from psyche_optim_lion_vote.optimizer import LionVote

    return LionVote(context.settings, context.model)
