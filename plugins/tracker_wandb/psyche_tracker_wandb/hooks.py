"""Registers the tracker `wandb`. The library of Weights & Biases is imported when one is made."""

from __future__ import annotations

from psyche_core.hookspecs import TrackerContext, TrackerRegistration, hookimpl
from psyche_core.interfaces import Tracker
from psyche_tracker_wandb.settings import WandbSettings, check

PSYCHE_PLUGIN_API = "1.0"


def _create(context: TrackerContext) -> Tracker:
    from psyche_tracker_wandb.tracker import WandbTracker

    return WandbTracker(context.run, context.settings)


@hookimpl
def psyche_register_trackers() -> list[TrackerRegistration]:
    """The tracker `wandb`."""
    return [
        TrackerRegistration(
            name="wandb",
            summary="Weights & Biases, also offline",
            settings=WandbSettings,
            create=_create,
            check=check,
        )
    ]
