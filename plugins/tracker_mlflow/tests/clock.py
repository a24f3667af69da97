"""A run, a time that passes when a test says so, and a tracker of both."""

from __future__ import annotations

from plugins.tracker_mlflow.tests.mlflow_server import MlflowServer
from psyche_core.interfaces import TrackedRun
from psyche_tracker_mlflow.settings import MlflowSettings
from psyche_tracker_mlflow.tracker import MlflowTracker

RUN = TrackedRun(run_id="first-light", member="cd" * 32, config={"total_steps": 9})
MOMENT = 1_700_000_000.0


class Clock:
    """Time that passes when a test says so. seconds: now."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def tracker(server: MlflowServer, *, run: TrackedRun = RUN, now: Clock | None = None, **settings: str) -> MlflowTracker:
    given = MlflowSettings(mlflow_tracking_uri=server.address, **settings)  # type: ignore[arg-type]
    return MlflowTracker(run, given) if now is None else MlflowTracker(run, given, now=now)
