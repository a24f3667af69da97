"""Registers the architecture `StateSpace`. torch is imported when a run builds one, not before."""

from __future__ import annotations

from psyche_core.hookspecs import ModelContext, ModelRegistration, hookimpl
from psyche_core.interfaces import Model

PSYCHE_PLUGIN_API = "1.0"


@hookimpl
def psyche_register_models() -> list[ModelRegistration]:
    """One architecture."""
    return [ModelRegistration(name="StateSpace", summary="diagonal state-space language model", create=create)]


def create(context: ModelContext) -> Model:
    """The model of a run, from context.source: config.json, and model.safetensors unless it starts from random weights."""
    from psyche_model_state_space.model import create_model

    return create_model(context)
