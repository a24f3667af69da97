"""Registers the tracker `mlflow`. The HTTP library is imported when one is made."""

from __future__ import annotations

from psyche_core.hookspecs import TrackerContext, TrackerRegistration, hookimpl
from psyche_core.interfaces import Tracker
from psyche_tracker_mlflow.settings import MlflowSettings, check

PSYCHE_PLUGIN_API = "1.0"


def _create(context: TrackerContext) -> Tracker:
    from psyche_tracker_mlflow.tracker import MlflowTracker

    return MlflowTracker(context.run, context.settings)


@hookimpl
def psyche_register_trackers() -> list[TrackerRegistration]:
    """The tracker `mlflow`."""
    return [
        TrackerRegistration(
            name="mlflow",
            summary="a server of MLflow",
            settings=MlflowSettings,
            create=_create,
            check=check,
        )
    ]
