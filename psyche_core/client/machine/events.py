"""Events, which the client machine receives, and actions, which it returns. Plain values.

The runtime turns I/O into events and actions into I/O; the simulator does the same without I/O. At most one piece of trainer
work is outstanding: each `Work` action is answered by exactly one of the events named in its docstring, or by WorkFailed.
"""

from __future__ import annotations

from dataclasses import dataclass

from psyche_core.coordinator.commands import Command
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry.events import Event as ReportEvent
from psyche_core.types import BatchId, NodeIdentity
from psyche_core.wire.messages import Message, Result

Share = tuple[BatchId, ...]

# ------------------------------------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True)
class StateSeen:
    """A newer coordinator state."""

    state: CoordinatorState


@dataclass(frozen=True, slots=True)
class MessageSeen:
    """A message whose envelope was verified. origin: p2p key of the signer."""

    origin: bytes
    message: Message


@dataclass(frozen=True, slots=True)
class PeersSeen:
    """The p2p keys that are connected now."""

    peers: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class BandwidthSeen:
    """Bytes received from peers per second, measured recently."""

    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class PayloadChecked:
    """A fetched payload matched its hash; valid: whether it fits our parameter table. tag: of the fetch; it is kept as long."""

    payload_hash: bytes
    valid: bool
    tag: int


@dataclass(frozen=True, slots=True)
class PayloadUnjudged:
    """A fetched payload matched its hash, but our own check of it failed, so its validity is unknown. reason: one sentence."""

    payload_hash: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class PayloadMissing:
    """No peer that was asked sent the payload in time."""

    payload_hash: bytes


@dataclass(frozen=True, slots=True)
class ModelReady:
    """Model, optimizer and data are open. digest: full digest of the masters. max_payload_bytes: of any valid payload.

    step: the last step whose results are in these masters; None for the model the run's checkpoint names. held: steps and full
    digests of the signed epoch ends on our disk, if our masters are not up to date or not signed. journalled: we keep a journal.
    """

    digest: bytes
    max_payload_bytes: int
    step: int | None = None
    held: tuple[tuple[int, bytes], ...] = ()
    journalled: bool = False


@dataclass(frozen=True, slots=True)
class SourceMissing:
    """Nothing on this machine says how the run's model is built, but other members know it. reason: one sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Trained:
    """Our share is trained and its payload published under its hash."""

    height: int
    loss: float
    tokens: int
    seconds: float
    payload_hash: bytes
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class TrainFailed:
    """Our share could not be trained; nothing was sent. reason: one sentence. passing: the cause is temporary."""

    height: int
    reason: str
    passing: bool = False


@dataclass(frozen=True, slots=True)
class PayloadsLost:
    """A round was not applied because these payloads are missing; the masters are unchanged."""

    height: int
    payload_hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """A round's accepted results are in the masters."""

    height: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Digested:
    """The full digest (32 bytes) of the masters during a round."""

    height: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class EpochClosed:
    """The epoch-end work (full digest, evaluation, checkpoint) is done. saved: a checkpoint was saved, so it can be stored."""

    digest: bytes
    saved: bool = False


@dataclass(frozen=True, slots=True)
class ModelStored:
    """The checkpoint of `step` is in the store. location: name and settings as in the run configuration."""

    step: int
    location: object


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The checkpoint of `step` could not be stored. reason: one sentence."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """Our masters after `step` are offered as blobs. manifest_hash, manifest_bytes: of their manifest.

    description_hash, description_bytes: of the model's description; zeros where that is not offered. digest: full digest of the
    masters as they are now; zeros where it was not taken.
    """

    step: int
    manifest_hash: bytes
    manifest_bytes: int
    description_hash: bytes = bytes(32)
    description_bytes: int = 0
    digest: bytes = bytes(32)


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """Our masters after `step` cannot be offered; nothing must be announced. reason: one sentence, already shown to people."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class ModelFetched:
    """Our masters are now those after `step`, every piece verified; all optimizer state is forgotten. digest: full digest."""

    step: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class ModelFetchFailed:
    """The masters of a manifest could not be fetched; ours are unchanged. reason: one sentence."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """Work ended in an error that no other answer covers. The masters may be in any state.

    reason: one sentence. The runtime has logged the traceback.
    """

    work: Work
    reason: str


@dataclass(frozen=True, slots=True)
class CommandAnswered:
    """A command was accepted (code None) or refused."""

    command: Command
    code: str | None


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """The user asked us to leave."""


@dataclass(frozen=True, slots=True)
class Reminded:
    """The time of a Remind is over."""

    tag: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing happened for a moment."""


WorkDone = (
    ModelReady
    | SourceMissing
    | Trained
    | TrainFailed
    | Applied
    | PayloadsLost
    | Digested
    | EpochClosed
    | SnapshotTaken
    | SnapshotFailed
    | ModelFetched
    | ModelFetchFailed
    | WorkFailed
)
"""Answers to a piece of `Work`."""

Event = (
    StateSeen
    | MessageSeen
    | PeersSeen
    | BandwidthSeen
    | PayloadChecked
    | PayloadMissing
    | PayloadUnjudged
    | WorkDone
    | ModelStored
    | StoreFailed
    | CommandAnswered
    | LeaveAsked
    | Reminded
    | TimePassed
)

# ------------------------------------------------------------------------------------------------ actions


@dataclass(frozen=True, slots=True)
class Join:
    """Ask the backend for membership of the next epochs."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a command to the coordinator; answered by CommandAnswered."""

    command: Command


@dataclass(frozen=True, slots=True)
class SetPeers:
    """Set the members to communicate with."""

    members: tuple[NodeIdentity, ...]


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Seal a message and send it to all members until its tag expires."""

    message: Message
    tag: int


@dataclass(frozen=True, slots=True)
class FetchPayload:
    """Fetch and check a payload, and keep it until `tag` expires. sources: p2p keys, best first.

    Answered by PayloadChecked, PayloadMissing or PayloadUnjudged.
    """

    payload_hash: bytes
    sources: tuple[bytes, ...]
    tag: int


@dataclass(frozen=True, slots=True)
class Expire:
    """Forget messages and payloads with older tags."""

    before: int


@dataclass(frozen=True, slots=True)
class KeptResult:
    """A verified result as the journal keeps it.

    trainer: p2p key; signer: the signer half of its identity; seed: of its round.
    """

    result: Result
    slot: int
    seed: int
    trainer: bytes
    signer: bytes


@dataclass(frozen=True, slots=True)
class KeepResults:
    """Write these results and their payloads, which are all here, to the journal.

    It is synced before our next statement is sent.
    """

    results: tuple[KeptResult, ...]


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Start reading the samples of our share; the Train work for the same share follows."""

    share: Share


@dataclass(frozen=True, slots=True)
class Remind:
    """Answer with Reminded after this many seconds, independently of work. tag: of the round it is about."""

    tag: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StoreModel:
    """Put the checkpoint saved after `step` into the store, independently of work; answered by ModelStored or StoreFailed."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class Load:
    """Work: build model, optimizer and data for this state; answered by ModelReady or SourceMissing.

    fresh: use the model that the run's checkpoint names, even if we saved one ourselves.
    """

    state: CoordinatorState
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Train:
    """Work: train a share and publish the payload; answered by Trained or TrainFailed.

    generation: of the run; in a new one, results sent in an older one are forgotten first.
    """

    height: int
    step: int
    share: Share
    tag: int
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Apply:
    """Work: apply these payloads, all fetched and checked; answered by Applied or PayloadsLost. Their order has no meaning.

    Equal bytes that several slots sent are listed, and applied, as often. The rest is for the journal: commitments: of the
    payloads, in the same order; statements: digest of the statements that accepted them; data_index: first sample never
    assigned yet; generation: of the run.
    """

    height: int
    step: int
    payload_hashes: tuple[bytes, ...]
    own_accepted: bool
    epoch: int = 0
    commitments: tuple[bytes, ...] = ()
    statements: bytes = bytes(32)
    data_index: int = 0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Digest:
    """Work: digest of the masters during a round; answered by Digested."""

    height: int


@dataclass(frozen=True, slots=True)
class CloseEpoch:
    """Work: full digest, evaluation and checkpoint after the last apply; answered by EpochClosed. step: last step applied.

    data_index: first sample never assigned yet. generation: of the run.
    """

    epoch: int
    step: int
    data_index: int = 0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Work: publish the masters, now those after `step`, under `tag`; answered by SnapshotTaken or SnapshotFailed."""

    step: int
    tag: int


@dataclass(frozen=True, slots=True)
class FetchModel:
    """Work: replace the masters by those of a manifest, fetching the pieces in which ours differ.

    sources: p2p keys that serve it. build: the state to build model, optimizer and data for first, None when they are built.
    descriptions: hash and length of the model's description as the sources report it, likeliest first; needed only with
    `build`. epoch, data_index, generation: of the run now, for the checkpoint from which the journal continues. epoch_end:
    whether the run knows the end of an epoch after this step. Answered by ModelFetched, or with `build` by ModelReady, or by
    ModelFetchFailed.
    """

    step: int
    manifest_hash: bytes
    manifest_bytes: int
    sources: tuple[bytes, ...]
    tag: int
    build: CoordinatorState | None = None
    descriptions: tuple[tuple[bytes, int], ...] = ()
    epoch: int = 0
    data_index: int = 0
    generation: int = 0
    epoch_end: bool = False


Work = Load | Train | Apply | Digest | CloseEpoch | TakeSnapshot | FetchModel


@dataclass(frozen=True, slots=True)
class Tell:
    """Show this to people."""

    event: ReportEvent


@dataclass(frozen=True, slots=True)
class Stop:
    """The client is done. reason: one sentence. again: start over from our disk, with new connections."""

    reason: str
    success: bool
    again: bool = False


Action = (
    Join | Send | SetPeers | Broadcast | FetchPayload | Expire | KeepResults | Prefetch | Remind | StoreModel | Work | Tell | Stop
)
