"""What this plugin registers: the data location `Http`. The HTTP library is imported only when a provider is made."""

from __future__ import annotations

from psyche_core.hookspecs import DataContext, DataRegistration, hookimpl
from psyche_core.interfaces import DataProvider
from psyche_data_http.settings import HttpSettings

PSYCHE_PLUGIN_API = "1.0"


def _create(context: DataContext) -> DataProvider:
    from psyche_data_http.provider import HttpData

    return HttpData.from_context(context)


@hookimpl
def psyche_register_data() -> list[DataRegistration]:
    """The data location `Http`."""
    return [
        DataRegistration(
            name="Http",
            summary="Token files on web servers, read by ranges",
            settings=HttpSettings,
            create=_create,
        )
    ]
