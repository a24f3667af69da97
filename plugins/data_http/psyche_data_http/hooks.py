"""Registers the data locations `Http` and `WeightedHttp`. The HTTP library is imported when one is made."""

from __future__ import annotations

from psyche_core.hookspecs import DataContext, DataRegistration, hookimpl
from psyche_core.interfaces import DataProvider
from psyche_data_http.settings import HttpSettings, WeightedHttpSettings

PSYCHE_PLUGIN_API = "1.0"


def _create(context: DataContext) -> DataProvider:
    from psyche_data_http.provider import HttpData

    return HttpData.from_context(context)


def _create_weighted(context: DataContext) -> DataProvider:
    from psyche_data_http.weighted import WeightedHttpData

    return WeightedHttpData.from_context(context)


@hookimpl
def psyche_register_data() -> list[DataRegistration]:
    """Return the data locations `Http` and `WeightedHttp`."""
    return [
        DataRegistration(
            name="Http",
            summary="token files on web servers and in buckets, read by ranges",
            settings=HttpSettings,
            create=_create,
        ),
        DataRegistration(
            name="WeightedHttp",
            summary="several sources mixed by weights from a JSON file",
            settings=WeightedHttpSettings,
            create=_create_weighted,
        ),
    ]
