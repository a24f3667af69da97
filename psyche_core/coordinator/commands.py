"""The commands `apply` accepts and the events it returns. This module has only values; what they do is in `transitions`.

Every command that a client sends carries `sender`, the identity the backend authenticated. The coordinator trusts the backend for
that and for nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from psyche_core.config.run_config import CoordinatorConfig, ModelConfig
from psyche_core.coordinator.state import CoordinatorState, Progress
from psyche_core.types import NodeIdentity, WitnessMetadata, WitnessStatement


@dataclass(frozen=True, slots=True)
class Tick:
    """Let time pass."""


@dataclass(frozen=True, slots=True)
class Join:
    """Ask to be a member of the next epochs.

    proof: signature (64 bytes) of the sender's p2p key over the run's instance and the sender's signer, see
    `psyche_core.wire.messages.sign_join`: nobody can join with a transport key it does not have.
    """

    sender: NodeIdentity
    proof: bytes


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Stop being a member: leaves the pending list and turns a healthy slot into a withdrawn one."""

    sender: NodeIdentity


@dataclass(frozen=True, slots=True)
class WarmupWitness:
    """`sender` has the model and is ready. index: its own slot. model_digest: full digest of the loaded model, 32 bytes.

    In warmup it counts towards the start of the first round. A digest of zeros, or `history.held_digest` of an earlier end, says
    there that the sender cannot get the model the epoch starts with, and what it holds instead (F18). While rounds are played it
    brings a dropped or withdrawn slot whose client joined again back to health (protocol section 5): it takes part from the next
    round on.
    """

    sender: NodeIdentity
    epoch: int
    index: int
    model_digest: bytes


@dataclass(frozen=True, slots=True)
class Witness:
    """An elected witness's statement."""

    sender: NodeIdentity
    statement: WitnessStatement
    metadata: WitnessMetadata | None = None


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A witness of the previous round reports slots whose work a quorum did not see."""

    sender: NodeIdentity
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EpochDigest:
    """The sender's masters after the last apply of `epoch` have this full digest (32 bytes). index: its own slot.

    A quorum of the healthy members signs the epoch's end with it (F18).
    """

    sender: NodeIdentity
    epoch: int
    index: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A designated checkpointer stored the model, or cannot: the next in the order takes over.

    location: name and settings as in the run configuration, None for a storing that failed or that nothing is set up for.
    """

    sender: NodeIdentity
    location: object


@dataclass(frozen=True, slots=True)
class SignedResult:
    """One half of a proof: the SHA-256 of a payload and its trainer's signature (64 bytes) of the commitment that follows."""

    payload_hash: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Equivocation:
    """Proof that slot `index` signed two different results for its share of round `height` (F7): it is ejected.

    Only about a stored round of this epoch; the commitments are computed again from the state, so nothing is believed. What
    becomes of the share is said in `equivocation`.
    """

    sender: NodeIdentity
    epoch: int
    height: int
    index: int
    first: SignedResult
    second: SignedResult


@dataclass(frozen=True, slots=True)
class SetFutureEpochRates:
    """The run's owner sets what later epochs pay, in points (u64); None keeps what is there. Allowed in every state."""

    earning_total_shared: int | None = None
    slashing_per_client: int | None = None


@dataclass(frozen=True, slots=True)
class Settle:
    """The run's owner paid a signer (32 bytes) all it had earned: its balance is freed."""

    signer: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """The run's owner pauses the run."""


@dataclass(frozen=True, slots=True)
class Resume:
    """The run's owner resumes (or first starts) the run.

    from_checkpoint: where no member holds a model to go on with (`CoordinatorState.model_lost`), the owner's word that the run
    goes back to the stored checkpoint; what was trained since is trained again.
    """

    from_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class UpdateConfig:
    """The run's owner replaces configuration; only while halted. None keeps what is there.

    progress: where the run goes on, such as at an older checkpoint; the queue is emptied, for what was lost in a history that is
    left is assigned again, or was trained before the step that is gone on from.
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
    """Warmup begins with this many clients."""

    epoch: int
    clients: int


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """A round began."""

    epoch: int
    height: int
    step: int
    drain: bool


@dataclass(frozen=True, slots=True)
class RoundSettled:
    """Acceptance of the round's results is decided. accepted, refused: slots with a share."""

    epoch: int
    height: int
    step: int
    accepted: tuple[int, ...]
    refused: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClientsExited:
    """Slots that stopped being healthy."""

    epoch: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClientsReturned:
    """Slots that are healthy again and take part from the next round on."""

    epoch: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RewardsShared:
    """An epoch's end paid its workers. earned, slashed: slot -> points, only where not 0."""

    epoch: int
    earned: tuple[tuple[int, int], ...]
    slashed: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ShareVoided:
    """An accepted share turned out to be one nobody could agree on (F7). requeued: its samples are in the queue, else lost."""

    epoch: int
    height: int
    slot: int
    requeued: bool


@dataclass(frozen=True, slots=True)
class CooldownStarted:
    """The epoch's rounds are over. reason: name of the EndReason, or `Abandoned` when nobody was left."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """success is False for an epoch abandoned in warmup."""

    epoch: int
    success: bool


@dataclass(frozen=True, slots=True)
class StatementVoided:
    """A witness claimed results of slots that had no share; its statement does not count, its duty counts as missed."""

    epoch: int
    height: int
    slot: int


@dataclass(frozen=True, slots=True)
class EpochSigned:
    """A quorum said that it holds these masters after an epoch's end. step: the last one applied. digest: 32 bytes."""

    step: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class WentBack:
    """No member holds the model after `from_step`: the run goes on after `to_step`, and trains what came between again.

    from_checkpoint: with the model of the stored checkpoint, otherwise with one that members hold.
    """

    from_step: int
    to_step: int
    from_checkpoint: bool


@dataclass(frozen=True, slots=True)
class ModelLost:
    """No member holds the model after `step`, nor that of any signed epoch end. The run is paused until its owner decides."""

    step: int


@dataclass(frozen=True, slots=True)
class RunFinished:
    """total_steps were trained and the last cooldown is over."""

    steps: int


Event = (
    EpochStarted
    | RoundStarted
    | RoundSettled
    | ClientsExited
    | ClientsReturned
    | ShareVoided
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
"""A new state and what happened on the way to it."""
