"""The commands `apply` accepts and the events it returns. This module has only values; `transitions` defines what they do.

Every command that a client sends carries `sender`, the identity that the backend authenticated. Authentication is the only thing
for which the coordinator trusts the backend.
"""

from __future__ import annotations

from dataclasses import dataclass

from psyche_core.config.run_config import CoordinatorConfig, ModelConfig
from psyche_core.coordinator.state import CoordinatorState, Progress
from psyche_core.types import NodeIdentity, WitnessMetadata, WitnessStatement


@dataclass(frozen=True, slots=True)
class Tick:
    """Tell the coordinator the current time, so that it can do what is due."""


@dataclass(frozen=True, slots=True)
class Join:
    """Ask to be a member of the next epochs.

    proof: signature (64 bytes) by the sender's p2p key over the run's instance and the sender's signer, see
    `psyche_core.wire.messages.sign_join`. It prevents joining with the transport key of another client.
    """

    sender: NodeIdentity
    proof: bytes


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Stop being a member: removes the sender from the pending list, and changes its slot from healthy to withdrawn."""

    sender: NodeIdentity


@dataclass(frozen=True, slots=True)
class WarmupWitness:
    """`sender` has the model and is ready. index: its own slot. model_digest: full digest of the loaded model, 32 bytes.

    In warmup this counts towards the start of the first round. If the sender cannot get the model that the epoch starts with, it
    sends a digest of zeros instead, or `history.held_digest` of an earlier step whose model it holds (F18). During rounds this
    command makes a dropped or withdrawn slot healthy again if its client has joined again (protocol section 5). The slot then
    takes part from the next round on.
    """

    sender: NodeIdentity
    epoch: int
    index: int
    model_digest: bytes


@dataclass(frozen=True, slots=True)
class Witness:
    """An elected witness's statement about the previous round."""

    sender: NodeIdentity
    statement: WitnessStatement
    metadata: WitnessMetadata | None = None


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A witness of the previous round reports slots whose results were not seen by a quorum."""

    sender: NodeIdentity
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EpochDigest:
    """The full digest (32 bytes) of the sender's master weights after the last apply of `epoch`. index: its own slot.

    The epoch's end counts as signed when a quorum of the members that took part in the epoch sent the same digest (F18).
    """

    sender: NodeIdentity
    epoch: int
    index: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpointer stored the model, or reports that it cannot, so that the next one in the order takes over.

    location: name and settings as in the run configuration. None if storing failed or if the sender has no storage configured.
    step: after which the stored model was saved. A coordinator that was restored from an older state must not take a model of a
    later step for the one that it asks for. None if the sender does not say, as over a chain, which has one history.
    """

    sender: NodeIdentity
    location: object
    step: int | None = None


@dataclass(frozen=True, slots=True)
class SignedResult:
    """One half of a proof: the SHA-256 of a payload, and the trainer's signature (64 bytes) of the commitment to this payload."""

    payload_hash: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Equivocation:
    """Proof that slot `index` signed two different results for its share of round `height` (F7). The slot is ejected.

    The round must be one of the stored rounds of this epoch. The coordinator computes the commitments again from the state, so it
    does not have to trust the sender. The module `equivocation` describes what happens with the share.
    """

    sender: NodeIdentity
    epoch: int
    height: int
    index: int
    first: SignedResult
    second: SignedResult


@dataclass(frozen=True, slots=True)
class VerifierCommit:
    """Who recomputes the share of slot `trainer` of round `height` commits to its gradient (protocol section 7).

    commitment: 32 bytes, see `psyche_core.verification.merkle.committed_root`; None from the verifier if the trainer has not
    given it the signs of its delta. seed: u64, of the round in which this is sent: a coordinator that was restored from an older
    state plays rounds again, and what belongs to a forgotten one does not count.
    """

    sender: NodeIdentity
    epoch: int
    seed: int
    height: int
    trainer: int
    commitment: bytes | None


@dataclass(frozen=True, slots=True)
class SetFutureEpochRates:
    """The run's owner sets what later epochs pay, in points (u64). None keeps the present rate. Allowed in every state."""

    earning_total_shared: int | None = None
    slashing_per_client: int | None = None


@dataclass(frozen=True, slots=True)
class Settle:
    """The run's owner paid a signer (32 bytes) everything it had earned: its balance is removed from the state."""

    signer: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """The run's owner pauses the run."""


@dataclass(frozen=True, slots=True)
class Resume:
    """The run's owner resumes (or first starts) the run.

    from_checkpoint: the owner decides that the run goes back to the stored checkpoint. Only allowed if no member holds a model
    with which the run could continue (`CoordinatorState.model_lost`). The steps after the checkpoint are trained again.
    """

    from_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class UpdateConfig:
    """The run's owner replaces configuration. Only allowed while the run is halted. None keeps the present value.

    progress: where the run continues, for example at an older checkpoint. This also empties the queue of samples to be assigned
    again: each queued sample is either assigned again after the new start, or was trained before it.
    """

    config: CoordinatorConfig | None = None
    model: ModelConfig | None = None
    progress: Progress | None = None


Command = (
    Tick
    | Join
    | Withdraw
    | WarmupWitness
    | Witness
    | HealthCheck
    | Equivocation
    | VerifierCommit
    | EpochDigest
    | Checkpoint
    | Pause
    | Resume
    | UpdateConfig
    | SetFutureEpochRates
    | Settle
)


@dataclass(frozen=True, slots=True)
class EpochStarted:
    """Warmup begins with `clients` clients."""

    epoch: int
    clients: int


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """A round began. drain: whether it is the drain round, in which nothing is trained."""

    epoch: int
    height: int
    step: int
    drain: bool


@dataclass(frozen=True, slots=True)
class RoundSettled:
    """The coordinator decided which results of the round are accepted. accepted, refused: slots that had a share."""

    epoch: int
    height: int
    step: int
    accepted: tuple[int, ...]
    refused: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClientsExited:
    """Some slots stopped being healthy."""

    epoch: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClientsReturned:
    """Some slots are healthy again and take part from the next round on."""

    epoch: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RewardsShared:
    """The clients of an epoch were paid at its end. earned, slashed: pairs (slot, points), without slots that have 0 points."""

    epoch: int
    earned: tuple[tuple[int, int], ...]
    slashed: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ShareVoided:
    """An accepted share became void, because its trainer signed several results and the clients did not agree on one (F7).

    requeued: True if its samples went back to the queue, False if they are counted as lost. Samples that are counted as lost can
    go back to the queue later, because of a proof with a third result.
    """

    epoch: int
    height: int
    slot: int
    requeued: bool


@dataclass(frozen=True, slots=True)
class ChallengesDrawn:
    """Accepted shares of round `height` are challenged. drawn: pairs (trainer, verifier) of slots."""

    epoch: int
    height: int
    drawn: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ChallengeClosed:
    """A challenge about the share of slot `trainer` of round `height` has ended.

    outcome: name of an `Outcome` of psyche_core.verification.challenge. strikes: slots that get one. missed: slots that were to
    judge and were silent. paid: slots for which it
    counts as an accepted round. requeued: whether the share's samples, which everybody applied, are trained again.
    """

    epoch: int
    height: int
    trainer: int
    verifier: int
    outcome: str
    strikes: tuple[int, ...]
    missed: tuple[int, ...]
    paid: tuple[int, ...]
    requeued: bool


@dataclass(frozen=True, slots=True)
class CooldownStarted:
    """The epoch's rounds are over. reason: name of the EndReason, or `Abandoned` without a healthy client or a statement."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """An epoch ended. success: False if it was abandoned in warmup."""

    epoch: int
    success: bool


@dataclass(frozen=True, slots=True)
class StatementVoided:
    """A witness claimed results of slots that had no share. Its statement does not count, and its duty counts as missed."""

    epoch: int
    height: int
    slot: int


@dataclass(frozen=True, slots=True)
class EpochSigned:
    """A quorum reported equal master weights at an epoch's end. step: the last one applied. digest: of the weights, 32 bytes."""

    step: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class WentBack:
    """No member holds the model after `from_step`. The run continues after `to_step` and trains the steps between again.

    from_checkpoint: True if it continues with the model of the stored checkpoint, False with a model that members hold.
    """

    from_step: int
    to_step: int
    from_checkpoint: bool


@dataclass(frozen=True, slots=True)
class ModelLost:
    """No member holds the model after `step` or the model of a signed epoch end. The run is paused until its owner decides."""

    step: int


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run trained total_steps steps and the last cooldown is over. steps: number of steps trained."""

    steps: int


Event = (
    EpochStarted
    | RoundStarted
    | RoundSettled
    | ClientsExited
    | ClientsReturned
    | ShareVoided
    | ChallengesDrawn
    | ChallengeClosed
    | CooldownStarted
    | RewardsShared
    | EpochEnded
    | StatementVoided
    | EpochSigned
    | WentBack
    | ModelLost
    | RunFinished
)

Outcome = tuple[CoordinatorState, tuple[Event, ...]]
"""A new state and the events that led to it."""
