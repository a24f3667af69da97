"""Typed events: what the programs report about a run, for every screen, log, file and tracker.

They hold plain values only, so that every event is one JSON object. `sinks` decides how they reach people.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Started:
    """The program is up. role: `client` or `server`; id: signer in hex; address: where it listens or which server it uses.

    A client is no member yet then: see Joined.
    """

    role: str
    id: str
    run_id: str
    address: str


@dataclass(frozen=True, slots=True)
class Joined:
    """The coordinator took our request to take part, which a client makes once what it needs is there; told once."""

    run_id: str


@dataclass(frozen=True, slots=True)
class WaitsForEpoch:
    """We joined while an epoch is played: we take part from the next one on. epoch: the one that is played; told once in it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The coordinator took us out of the epoch that is played.

    height: the round in which it did. why, as far as we can tell: `unready` (we were not ready when the first round began),
    `silent` (no result of ours came), `late` (our results came much later than all others', protocol F16), `unstated` (as a
    witness we did not state in time, again and again), `lost` (our connection to the coordinator was lost for too long).
    returns: whether we may take part again in this epoch, once our model is up to date; otherwise in the next one.
    """

    epoch: int
    height: int
    why: str
    returns: bool


@dataclass(frozen=True, slots=True)
class CameBack:
    """We take part again in an epoch that we were dropped from."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TokenFiles:
    """Token files are made from text, once: told before the first text, now and then, and when they are ready.

    texts: those done, of so many in all; tokens: made so far; seconds: since it began.
    """

    folder: str
    texts: int
    of: int
    tokens: int
    seconds: float
    ready: bool = False


@dataclass(frozen=True, slots=True)
class Stopping:
    """A signal ends the server before the run is finished.

    step: next to train; folder: where the state lies that the run goes on from when the server is started again, None where there
    is none.
    """

    step: int
    folder: str | None


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """The coordinator's phase as seen here. step: next step to train; clients: healthy members of the epoch.

    While the run waits for members: clients are those that wait, and needed is how many an epoch needs to start.
    """

    phase: str
    epoch: int
    step: int
    clients: int
    height: int | None = None
    needed: int | None = None


@dataclass(frozen=True, slots=True)
class ModelLoading:
    """The model begins to be built and loaded; ModelLoaded says when it is there. model: what the run calls it."""

    model: str


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    """parameters: number of trainable values; seconds: wall time of building or loading.

    step: the last one whose results are in it, where a checkpoint says so; None for a model the run begins with.
    """

    parameters: int
    seconds: float
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a client found in its own folder of checkpoints, and what that makes of its model.

    checkpoint: step of the checkpoint, None without one; step: the last one in our masters, those of the journal included, None
    where nothing was found; due: the step that the run's masters are of.
    """

    folder: str
    checkpoint: int | None
    step: int | None
    due: int


@dataclass(frozen=True, slots=True)
class MicroBatchFound:
    """So many sequences per forward pass were found to fit into memory; told where the size was left to us."""

    size: int


@dataclass(frozen=True, slots=True)
class StepTrained:
    """Our share of a step. loss in nats per token; tokens: in our share; seconds: wall time; payload_bytes: of our result."""

    epoch: int
    step: int
    loss: float
    tokens: int
    seconds: float
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class StepApplied:
    """Results of a step were applied. accepted of trained: trainers' shares accepted by the witnesses, and handed out."""

    epoch: int
    step: int
    accepted: int
    trained: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WitnessSent:
    """Our witness statement of a round was taken by the coordinator."""

    epoch: int
    height: int
    opportunistic: bool


@dataclass(frozen=True, slots=True)
class NetworkTotals:
    """Bytes since start on our side of the transport, and peers connected now."""

    bytes_sent: int
    bytes_received: int
    peers: int


@dataclass(frozen=True, slots=True)
class EpochDigest:
    """SHA-256 (hex) over all float32 parameters at the end of an epoch, after everything trained in it was applied."""

    epoch: int
    step: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ReplicasDiffer:
    """A peer reported another digest for the same epoch end."""

    epoch: int
    ours: str
    theirs: str
    peer: str


@dataclass(frozen=True, slots=True)
class Resynced:
    """Our masters are those of the other members after `step` now, verified piece by piece."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class Validated:
    """Loss on held-out text, in nats per token, of the weights after `step` trained and applied steps."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A complete checkpoint lies at path."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class ModelSync:
    """We fetch the masters after `step` from peers, in the pieces in which ours differ; told at the start and as it goes on.

    bytes_received: of the pieces done so far.
    """

    step: int
    pieces_done: int
    pieces_total: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class CheckpointStored:
    """We stored the model after `step`, and the run refers to it now."""

    step: int
    location: str


@dataclass(frozen=True, slots=True)
class RewardPaid:
    """A member was paid what it earned in the run. member: its signer's first 8 hex digits; units: smallest ones of the token."""

    member: str
    units: int


@dataclass(frozen=True, slots=True)
class EpochSigned:
    """A quorum of the members signed the full digest (hex) of the masters after `step`: the run can always go back to there."""

    step: int
    sha256: str


@dataclass(frozen=True, slots=True)
class WentBack:
    """No member had the model after `from_step`: the run goes on after `to_step`, and trains the samples since again.

    from_checkpoint: with the model of the stored checkpoint, otherwise with one that members hold.
    """

    from_step: int
    to_step: int
    from_checkpoint: bool


@dataclass(frozen=True, slots=True)
class ModelLost:
    """No member has the model after `step`, nor that of an earlier epoch's end: the run waits for its owner."""

    step: int


@dataclass(frozen=True, slots=True)
class StatementVoided:
    """A witness claimed results of members that had no share; its statement does not count. member: its key's first digits."""

    epoch: int
    height: int
    member: str


@dataclass(frozen=True, slots=True)
class MemberWithdrew:
    """A member left the epoch in order, as it was asked to. member: its key's first digits."""

    epoch: int
    member: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """A signal asked the client to leave in order, which it does now. saves: whether it keeps checkpoints, and saves one last."""

    signal: str
    saves: bool


@dataclass(frozen=True, slots=True)
class Problem:
    """Something people should know; the run goes on. level: `warning` or `error`."""

    level: str
    message: str


@dataclass(frozen=True, slots=True)
class Mended:
    """What a Problem, or a warning in the log, told of is over. message: one sentence."""

    message: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The program is done. reason: one sentence; success: whether the run (or our part in it) ended as planned."""

    reason: str
    success: bool


Event = (
    Started
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
    | StepTrained
    | StepApplied
    | WitnessSent
    | NetworkTotals
    | EpochDigest
    | ReplicasDiffer
    | Resynced
    | Validated
    | CheckpointSaved
    | CheckpointStored
    | ModelSync
    | RewardPaid
    | EpochSigned
    | WentBack
    | ModelLost
    | StatementVoided
    | MemberWithdrew
    | Leaving
    | Problem
    | Mended
    | Ended
)
