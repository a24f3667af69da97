"""Registers the data location `Jsonl`."""

from __future__ import annotations

from psyche_core.hookspecs import DataContext, DataRegistration, hookimpl
from psyche_core.interfaces import DataProvider
from psyche_data_jsonl.settings import JsonlSettings

PSYCHE_PLUGIN_API = "1.0"


@hookimpl
def psyche_register_data() -> list[DataRegistration]:
    """One data location."""
    summary = "texts of JSON lines, packed one after another, a token for each byte"
    return [DataRegistration(name="Jsonl", summary=summary, settings=JsonlSettings, create=create)]


def create(context: DataContext) -> DataProvider:
    """The provider of a run; context.settings is a validated JsonlSettings. Nothing is opened before it is entered."""
    from psyche_data_jsonl.provider import Jsonl

    settings: JsonlSettings = context.settings
    return Jsonl(context.base / settings.location, field=settings.field, sequence_length=context.sequence_length)
