"""Registers the tracker `tensorboard`. TensorBoard's library is imported when one is made."""

from __future__ import annotations

from psyche_core.hookspecs import TrackerContext, TrackerRegistration, hookimpl
from psyche_core.interfaces import Tracker
from psyche_tracker_tensorboard.settings import TensorboardSettings, check

PSYCHE_PLUGIN_API = "1.0"


def _create(context: TrackerContext) -> Tracker:
    from psyche_tracker_tensorboard.tracker import TensorboardTracker

    return TensorboardTracker(context.run, context.settings)


@hookimpl
def psyche_register_trackers() -> list[TrackerRegistration]:
    """The tracker `tensorboard`."""
    return [
        TrackerRegistration(
            name="tensorboard",
            summary="event files for TensorBoard",
            settings=TensorboardSettings,
            create=_create,
            check=check,
        )
    ]
