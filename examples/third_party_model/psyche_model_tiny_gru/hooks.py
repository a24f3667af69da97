"""Registers the architecture `TinyGru`. torch is imported when a run builds one, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_core.hookspecs import ModelContext, ModelRegistration, hookimpl

if TYPE_CHECKING:
    from psyche_core.interfaces import Model

PSYCHE_PLUGIN_API = "1.0"


@hookimpl
def psyche_register_models() -> list[ModelRegistration]:
    """One architecture."""
    return [ModelRegistration(name="TinyGru", summary="small recurrent language model (example)", create=_create)]


def _create(context: ModelContext) -> Model:
    from psyche_model_tiny_gru.model import create_tiny_gru

    return create_tiny_gru(context)
