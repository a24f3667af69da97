"""Names of the coordinator's errors, the same in every implementation. Where possible they are those of the reference."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "NoActiveRound": "the command is about a round and no round has been played in this epoch",
        "InvalidWitness": "a statement is not its elected or returning sender's own about this epoch and round, or is malformed",
        "InvalidRunState": "the command does not belong to the present phase",
        "DuplicateWitness": "this witness has already stated",
        "InvalidHealthCheck": "a health report is not from a witness of the previous round, or names a healthy slot",
        "Halted": "the run is uninitialized, finished or paused",
        "WitnessesFull": "the round holds as many statements as it can",
        "CannotResume": "only a paused or never started run resumes",
        "InvalidWithdraw": "the sender is neither pending nor healthy in this epoch",
        "InvalidCommitteeSelection": "no committee can be drawn from these numbers",
        "InvalidCheckpoint": "the sender is no listed or elected checkpointer, or the location cannot follow the present one",
        "ClientsFull": "as many members are pending as an epoch can hold",
        "AccountsFull": "the run holds as many balances as it can, and the sender could not be paid",
        "InvalidEvidence": "the report does not prove that a slot signed two results for a share, or is from no healthy member",
        "InvalidProof": "the transport key of who joins did not sign that it belongs to it in this run",
        "TransportKeyTaken": "another member has the transport key of who joins",
        "RejoinsExhausted": "the slot has come back as often as it may in one epoch; its client takes part in the next",
        "UpdateConfigFinished": "a finished run keeps its configuration",
        "UpdateConfigNotHalted": "configuration changes only while the run is halted",
        "ConfigSanityCheckFailed": "the coordinator's configuration breaks a rule, or a rate is out of range",
        "ModelSanityCheckFailed": "the model's configuration breaks a rule",
        "ProgressSanityCheckFailed": "the step, the first sample or the epoch from which the run is to go on is out of range",
        "InvalidSettlement": "the signer has no balance, or is in the epoch or pending and may still earn or be slashed",
        "NothingDue": "a tick came before anything was due; only a chain refuses that, where ticks cost a fee",
        "InvalidCommit": "the sender has nothing to commit to about this share in this round, or has committed before",
    }
)
"""The meaning of each name, in one line."""

NAMES: tuple[str, ...] = tuple(MEANINGS)
"""All possible values of `CoordinatorError.name`."""
