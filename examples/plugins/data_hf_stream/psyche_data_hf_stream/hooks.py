"""Registers the data location `HfStream`. datasets is imported when a run builds one, not before."""

from __future__ import annotations

from psyche_core.hookspecs import DataContext, DataRegistration, hookimpl
from psyche_core.interfaces import DataProvider
from psyche_data_hf_stream.settings import HfStreamSettings

PSYCHE_PLUGIN_API = "1.0"


@hookimpl
def psyche_register_data() -> list[DataRegistration]:
    """One data location."""
    summary = "a stream of Hugging Face datasets over local files, tokenized as it is read"
    return [DataRegistration(name="HfStream", summary=summary, settings=HfStreamSettings, create=create)]


def create(context: DataContext) -> DataProvider:
    """The provider of a run; context.settings is a validated HfStreamSettings. Nothing is opened before it is entered."""
    from psyche_data_hf_stream.provider import HfStream

    return HfStream(context.settings, base=context.base, cache=context.cache, sequence_length=context.sequence_length)
