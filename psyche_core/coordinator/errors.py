"""Names of the refusals of the coordinator, the same in every implementation. Reference names are kept where they fit."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "NoActiveRound": "the command is about a round and no round has been played in this epoch",
        "InvalidWitness": "a witness statement is not from an elected member about its own slot and this round, or is malformed",
        "InvalidRunState": "the command does not belong to the present phase",
        "DuplicateWitness": "this witness has already stated",
        "InvalidHealthCheck": "a health report is not from a witness of the previous round, or names a healthy slot",
        "Halted": "the run is uninitialized, finished or paused",
        "WitnessesFull": "the round holds as many statements as it can",
        "CannotResume": "only a paused or never started run resumes",
        "InvalidWithdraw": "the sender is neither pending nor healthy in this epoch",
        "InvalidCommitteeSelection": "no committee can be drawn from these numbers",
        "InvalidCheckpoint": "the sender is not the epoch's checkpointer, or the location cannot follow the present one",
        "ClientsFull": "as many members are pending as an epoch can hold",
        "UpdateConfigFinished": "a finished run keeps its configuration",
        "UpdateConfigNotHalted": "configuration changes only while the run is halted",
        "ConfigSanityCheckFailed": "the coordinator's configuration breaks a rule",
        "ModelSanityCheckFailed": "the model's configuration breaks a rule",
    }
)
"""Each name with what it means, in one line."""

NAMES: tuple[str, ...] = tuple(MEANINGS)
"""All names `CoordinatorError.name` can have."""
