"""Decides which events are news for people who watch a run, and how serious they are. The sentences are in `psyche_core.ui`."""

from __future__ import annotations

from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.events import Event

TRAINING_PHASES = ("RoundTrain", "RoundWitness")
"""The two phases of a round. They alternate too fast to be news."""

_SILENT = (
    telemetry.RunDescribed,
    telemetry.StepTrained,
    telemetry.StepFigures,
    telemetry.OptimizerStatistics,
    telemetry.ResultsFetched,
    telemetry.ResultOverlaps,
    telemetry.StepApplied,
    telemetry.NetworkTotals,
    telemetry.WitnessSent,
    telemetry.WitnessReported,
    telemetry.ScoreReported,
    telemetry.ModelSync,
    telemetry.PromptAnswered,
)
"""Events that come in each round or many times; they are shown in curves and tables."""

_ERRORS = (telemetry.ReplicasDiffer, telemetry.ModelLost, telemetry.StateIsOlder)
_WARNINGS = (
    telemetry.WentBack,
    telemetry.ModelContested,
    telemetry.Dropped,
    telemetry.MemberExited,
    telemetry.StatementVoided,
)


def news_level(event: Event) -> str | None:
    """Return `info`, `warning` or `error`; None for an event that is not news."""
    if isinstance(event, _SILENT) or (isinstance(event, telemetry.PhaseChanged) and event.phase in TRAINING_PHASES):
        return None
    if isinstance(event, telemetry.ShareChecked):
        return None if event.outcome == "passed" else "warning" if event.strikes else "info"
    if isinstance(event, telemetry.Problem):
        return event.level
    if isinstance(event, _ERRORS) or (isinstance(event, telemetry.Ended) and not event.success):
        return "error"
    return "warning" if isinstance(event, _WARNINGS) else "info"
