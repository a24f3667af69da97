"""Typed events: what the programs report about a run, for every screen, log, file and tracker.

They hold plain values only, so that every event is one JSON object. `sinks` delivers them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Started:
    """The program has started.

    A client is not yet a member then: see Joined.

    Attributes:
        role: `client` or `server`.
        id: signer in hex.
        address: where it listens, or the server it uses.
        total_steps: of the run, if the program knows it.
    """

    role: str
    id: str
    run_id: str
    address: str
    total_steps: int | None = None


@dataclass(frozen=True, slots=True)
class RelayStarted:
    """The server also runs a relay. url: that members are given."""

    url: str


@dataclass(frozen=True, slots=True)
class Joined:
    """The coordinator accepted our request to take part. A client joins once its resources are ready; emitted once."""

    run_id: str


@dataclass(frozen=True, slots=True)
class WaitsForEpoch:
    """We joined during an epoch and take part from the next one on. Emitted once per epoch.

    Attributes:
        epoch: the current one.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The coordinator dropped us from the current epoch.

    Attributes:
        height: the round in which this happened.
        why: the likely reason: `unready` (we were not ready when the first round began), `silent` (we sent no result), `late`
            (our results arrived much later than all others, protocol F16), `failed` (our own training failed), `unstated` (as a
            witness we repeatedly did not send our statement in time), `lost` (our connection to the coordinator was lost for too
            long).
        returns: whether we may take part again in this epoch, once our model is up to date; otherwise in the next one.
    """

    epoch: int
    height: int
    why: str
    returns: bool


@dataclass(frozen=True, slots=True)
class CameBack:
    """We take part again in an epoch from which we were dropped."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TokenFiles:
    """Token files are made from text, once. Emitted before the first text, at intervals, and when they are ready.

    Attributes:
        texts: number done.
        of: number in all.
        tokens: made so far.
        seconds: since the start.
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

    Attributes:
        step: next step to train.
        folder: folder of the saved state from which a restarted server continues the run; None if no state is saved.
        unchanged: whether nothing has happened in the run yet, so that there is no state to save.
    """

    step: int
    folder: str | None
    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """The coordinator's phase as seen here.

    While the run waits for members, clients is the number of those waiting, and needed the number that an epoch needs to start.

    Attributes:
        step: next step to train.
        clients: number of healthy members of the epoch.
    """

    phase: str
    epoch: int
    step: int
    clients: int
    height: int | None = None
    needed: int | None = None


@dataclass(frozen=True, slots=True)
class ModelLoading:
    """Building and loading of the model starts; ModelLoaded reports the end.

    Attributes:
        model: its name in the run's configuration.
    """

    model: str


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    """The model is ready.

    Attributes:
        parameters: number of trainable values.
        seconds: wall time of building or loading.
        step: the last step whose results are in it, according to its checkpoint; None for the first model of a run.
    """

    parameters: int
    seconds: float
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """The state that a client restored from its own checkpoint folder.

    Attributes:
        checkpoint: step of the checkpoint, None without one.
        step: the last step in our masters, including those of the journal; None if nothing was found.
        due: the step of the run's masters.
        again: whether the folder was read before by this process, when the run's masters were others.
    """

    folder: str
    checkpoint: int | None
    step: int | None
    due: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class MicroBatchFound:
    """How many sequences per forward pass fit into memory; emitted if the micro batch size is chosen automatically."""

    size: int


@dataclass(frozen=True, slots=True)
class StepTrained:
    """We trained our share of a step.

    Attributes:
        loss: nats per token.
        tokens: number in our share.
        seconds: wall time.
        payload_bytes: size of our result.
    """

    epoch: int
    step: int
    loss: float
    tokens: int
    seconds: float
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class RunDescribed:
    """What a run trains, as its coordinator says. A client emits it when it first knows it, and whenever it has changed.

    Attributes:
        model: its name in the run's configuration.
        architecture: plugin name of the model.
        optimizer: plugin name of the optimizer.
        sequence_length: in tokens.
        batch_size_start: samples of a step at first.
        batch_size_end: samples of a step after batch_size_warmup_tokens.
    """

    run_id: str
    model: str
    architecture: str
    optimizer: str
    total_steps: int
    sequence_length: int
    batch_size_start: int
    batch_size_end: int
    batch_size_warmup_tokens: int


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Further figures of a step that we trained; what covers several steps is about the newest ones of this epoch.

    Attributes:
        learning_rate: of the schedule at this step.
        perplexity: e to the power of the loss.
        confidence: 1 - loss / ln(size of the vocabulary): 0 for a model that only guesses, 1 for one that is always right.
        gradient_norm: L2 norm of our share's gradient, before any clipping.
        batch_tokens: tokens of all members' shares of this step; None if the coordinator's state no longer says it.
        total_tokens: tokens that the run has assigned so far.
        tokens_per_second: trained by all members together; None before our second step.
        efficiency: part of the time in which we trained, at most 1; None before our second step.
        wait_seconds: time since our step before, without training and applying; None before our second step.
    """

    step: int
    learning_rate: float
    perplexity: float
    confidence: float
    gradient_norm: float
    batch_tokens: int | None
    total_tokens: int
    tokens_per_second: float | None = None
    efficiency: float | None = None
    wait_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StepApplied:
    """Results of a step were applied.

    Attributes:
        accepted: shares that the witnesses accepted.
        trained: assigned shares.
    """

    epoch: int
    step: int
    accepted: int
    trained: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WitnessSent:
    """The coordinator accepted our witness statement of a round."""

    epoch: int
    height: int
    opportunistic: bool


@dataclass(frozen=True, slots=True)
class NetworkTotals:
    """Totals since the start on our side of the transport, and number of connected peers.

    Attributes:
        broadcasts_sent: messages that we sent to all members.
        messages_received: messages of other members that we took in.
        messages_refused: messages that were not what they must be.
        downloads_started: results of other members that we began to fetch.
        downloads_finished: of these, complete ones.
        downloads_failed: of these, ones that no member sent us in time, or not as they were announced.
        download_bytes: bytes of the complete ones.
    """

    bytes_sent: int
    bytes_received: int
    peers: int
    broadcasts_sent: int = 0
    messages_received: int = 0
    messages_refused: int = 0
    downloads_started: int = 0
    downloads_finished: int = 0
    downloads_failed: int = 0
    download_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PathOfPeer:
    """How one member is reached. peer: first digits of its p2p key. path: `direct`, `relayed` (through a relay) or `none`.

    rtt_ms: time of a packet there and back, 0 while unknown. sent_per_second, received_per_second: bytes, since the last report.
    """

    peer: str
    path: str
    rtt_ms: float = 0.0
    sent_per_second: int = 0
    received_per_second: int = 0


@dataclass(frozen=True, slots=True)
class PeerPaths:
    """How each other member of the epoch is reached. Emitted when that changes, and every half minute."""

    peers: tuple[PathOfPeer, ...]


@dataclass(frozen=True, slots=True)
class EpochDigest:
    """SHA-256 (hex) over all float32 parameters at the end of an epoch, after all its accepted results were applied."""

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
    """Our masters now equal those of the other members after `step`; each piece was verified."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class Validated:
    """Loss on held-out text, in nats per token, of the weights after `step` trained and applied steps."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Score of a benchmark, measured while the client trained.

    Attributes:
        task: its name in lm-evaluation-harness.
        metric: the one that stands for the task, such as `acc_norm`.
        documents: number that was measured; 0 for a group of tasks that does not say.
        from_step: the last step in the weights that measured the first document.
        step: the same for the last document; training goes on meanwhile.
    """

    task: str
    metric: str
    value: float
    documents: int
    from_step: int
    step: int


@dataclass(frozen=True, slots=True)
class PromptAnswered:
    """What the model wrote after a prompt.

    Attributes:
        number: of the prompt, from 0.
        text: without the prompt.
        from_step: the last step in the weights that wrote the first token.
        step: the same for the last token.
    """

    number: int
    prompt: str
    text: str
    from_step: int
    step: int


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A complete checkpoint was saved at `path`."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class ModelSync:
    """We download the pieces in which our masters differ from the members' masters after `step`.

    Emitted at the start and repeatedly.

    Attributes:
        bytes_received: size of the finished pieces.
    """

    step: int
    pieces_done: int
    pieces_total: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class CheckpointStored:
    """We stored the model after `step`, and the run now refers to it."""

    step: int
    location: str


@dataclass(frozen=True, slots=True)
class RewardPaid:
    """A member was paid its earnings in the run.

    Attributes:
        member: its signer's first 8 hex digits.
        units: smallest units of the token.
    """

    member: str
    units: int


@dataclass(frozen=True, slots=True)
class EpochSigned:
    """A quorum of the members signed the full digest (hex) of the masters after `step`: the run can return to it at any time."""

    step: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StateIsOlder:
    """The server continues the run from an older state than one that a member, or its own folder, knows.

    Attributes:
        epoch: the epoch in which the run continues.
        step: the next step to train.
        known_epoch: the epoch of the later state.
        known_step: the next step of the later state.
        member: first digits of the key of the member that says so; None if the server found the later state in its own folder.
        path: file with the state from which the run continues.
        later_path: file with the later state, if the server has it.
    """

    epoch: int
    step: int
    known_epoch: int
    known_step: int
    path: str
    member: str | None = None
    later_path: str | None = None


@dataclass(frozen=True, slots=True)
class WentBack:
    """No member had the model after `from_step`: the run continues after `to_step`, and trains the later samples again.

    Attributes:
        from_checkpoint: whether it continues with the model of the stored checkpoint, instead of a model that members have.
        by_owner: whether the run's owner asked for it, whatever members have.
    """

    from_step: int
    to_step: int
    from_checkpoint: bool
    by_owner: bool = False


@dataclass(frozen=True, slots=True)
class ModelLost:
    """In a warmup no member had the model after `step`, or the model after an earlier epoch: the run waits for its owner.

    Attributes:
        away: first digits of the keys of members that trained in this run and are not here now, those of the last epoch first.
        ask_again: command with which the owner lets the run ask its members again, empty without one.
        begin_again: command that restarts the run from its stored checkpoint, empty if the server keeps no state.
        stored_step: step of the stored checkpoint, 0 for the run's beginning.
        to_owner: whether the owner is told, by the server. Otherwise a member tells its people, without the fields above.
    """

    step: int
    away: tuple[str, ...] = ()
    ask_again: str = ""
    begin_again: str = ""
    stored_step: int = 0
    to_owner: bool = True


@dataclass(frozen=True, slots=True)
class ModelContested:
    """So few members offer the model after `step`, which no quorum signed, that they may be lying.

    Attributes:
        offering: number of members that offer the same model, at most.
        members: number of members of the epoch, this client included.
        signed_step: step of the newest epoch end that members signed, None without one. The owner can return the run to it.
        taken: whether this client took the model, because no other one is offered. Otherwise it waits for more members.
        starts: whether an epoch is to start with this model.
    """

    run_id: str
    step: int
    offering: int
    members: int
    signed_step: int | None
    taken: bool
    starts: bool


@dataclass(frozen=True, slots=True)
class StatementVoided:
    """A witness claimed results of members without a share; its statement is ignored.

    Attributes:
        member: first digits of its key.
    """

    epoch: int
    height: int
    member: str


@dataclass(frozen=True, slots=True)
class MemberWithdrew:
    """A member left the epoch cleanly, on request.

    Attributes:
        member: first digits of its key.
    """

    epoch: int
    member: str


@dataclass(frozen=True, slots=True)
class MemberExited:
    """The coordinator no longer counts on a member in this epoch. member: first digits of its key.

    why: `unready` (it was not ready when the first round began), `late` (it sent no result, or much later than all others),
    `ejected` (it signed two different results for one share), `lost` (its connection was lost for too long), `not allowed` (its
    key is no longer in the list of allowed clients).
    """

    epoch: int
    member: str
    why: str


@dataclass(frozen=True, slots=True)
class WitnessReported:
    """Figures of its own training that a witness sent the coordinator with its statement. Nobody has verified them.

    member: first digits of its key. step: of the round before. loss: nats per token.
    """

    member: str
    step: int
    loss: float
    tokens_per_second: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Leaving:
    """A signal asked the client to leave, and it now leaves cleanly.

    Attributes:
        saves: whether it saves a last checkpoint.
    """

    signal: str
    saves: bool


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that users should know; the run continues.

    Attributes:
        level: `warning` or `error`.
    """

    level: str
    message: str


@dataclass(frozen=True, slots=True)
class Mended:
    """A problem reported by a Problem event or a logged warning is over.

    Attributes:
        message: one sentence.
    """

    message: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The program has ended.

    Attributes:
        reason: one sentence.
        success: whether the run (or our part in it) ended as planned.
    """

    reason: str
    success: bool


Event = (
    Started
    | RelayStarted
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
    | ModelSync
    | RewardPaid
    | EpochSigned
    | StateIsOlder
    | WentBack
    | ModelLost
    | ModelContested
    | StatementVoided
    | MemberWithdrew
    | MemberExited
    | WitnessReported
    | Leaving
    | Problem
    | Mended
    | Ended
)
