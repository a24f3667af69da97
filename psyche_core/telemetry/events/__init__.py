"""Typed events: what the programs report about a run, for every screen, log, file and tracker.

They hold plain values only, so that every event is one JSON object. `telemetry.sinks` delivers them. Import them from here:
which of the modules below has one is no part of the contract. A new event is a class in the module of its topic, and a part of
`Event`.
"""

from __future__ import annotations

from psyche_core.telemetry.events.membership import (
    CameBack,
    Dropped,
    Joined,
    MemberExited,
    MemberWithdrew,
    PointsCounted,
    RewardPaid,
    ScoreReported,
    ShareChecked,
    StatementVoided,
    WaitsForEpoch,
    WitnessReported,
    WitnessSent,
)
from psyche_core.telemetry.events.network import (
    NetworkTotals,
    PathOfPeer,
    PeerPaths,
)
from psyche_core.telemetry.events.program import (
    Ended,
    Leaving,
    Mended,
    Problem,
    RelayStarted,
    RunContinued,
    Started,
    Stopping,
    TokenFiles,
)
from psyche_core.telemetry.events.replicas import (
    CheckpointSaved,
    CheckpointStored,
    EpochDigest,
    EpochSigned,
    JournalPublished,
    ModelContested,
    ModelLoaded,
    ModelLoading,
    ModelLost,
    ModelSync,
    ReplicasDiffer,
    Resumed,
    Resynced,
    StateIsOlder,
    WentBack,
)
from psyche_core.telemetry.events.training import (
    Evaluated,
    MicroBatchFound,
    OptimizerStatistics,
    OverlapOfResult,
    PhaseChanged,
    PromptAnswered,
    ResultOverlaps,
    ResultsFetched,
    RunDescribed,
    StepApplied,
    StepFigures,
    StepTrained,
    Validated,
)

Event = (
    Started
    | RelayStarted
    | RunContinued
    | TokenFiles
    | Stopping
    | Joined
    | WaitsForEpoch
    | Dropped
    | CameBack
    | PhaseChanged
    | ModelLoading
    | ModelLoaded
    | Resumed
    | MicroBatchFound
    | RunDescribed
    | StepTrained
    | StepFigures
    | OptimizerStatistics
    | ResultsFetched
    | ResultOverlaps
    | StepApplied
    | WitnessSent
    | NetworkTotals
    | PeerPaths
    | EpochDigest
    | ReplicasDiffer
    | Resynced
    | Validated
    | Evaluated
    | PromptAnswered
    | CheckpointSaved
    | CheckpointStored
    | JournalPublished
    | ModelSync
    | PointsCounted
    | RewardPaid
    | ShareChecked
    | EpochSigned
    | StateIsOlder
    | WentBack
    | ModelLost
    | ModelContested
    | StatementVoided
    | MemberWithdrew
    | MemberExited
    | ScoreReported
    | WitnessReported
    | Leaving
    | Problem
    | Mended
    | Ended
)

__all__ = [
    "CameBack",
    "CheckpointSaved",
    "CheckpointStored",
    "Dropped",
    "Ended",
    "EpochDigest",
    "EpochSigned",
    "Evaluated",
    "Event",
    "Joined",
    "JournalPublished",
    "Leaving",
    "MemberExited",
    "MemberWithdrew",
    "Mended",
    "MicroBatchFound",
    "ModelContested",
    "ModelLoaded",
    "ModelLoading",
    "ModelLost",
    "ModelSync",
    "NetworkTotals",
    "OptimizerStatistics",
    "OverlapOfResult",
    "PathOfPeer",
    "PeerPaths",
    "PhaseChanged",
    "PointsCounted",
    "Problem",
    "PromptAnswered",
    "RelayStarted",
    "ReplicasDiffer",
    "ResultOverlaps",
    "ResultsFetched",
    "Resumed",
    "Resynced",
    "RewardPaid",
    "RunContinued",
    "RunDescribed",
    "ScoreReported",
    "ShareChecked",
    "Started",
    "StateIsOlder",
    "StatementVoided",
    "StepApplied",
    "StepFigures",
    "StepTrained",
    "Stopping",
    "TokenFiles",
    "Validated",
    "WaitsForEpoch",
    "WentBack",
    "WitnessReported",
    "WitnessSent",
]
