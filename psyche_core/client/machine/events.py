"""Events, which the client machine receives. Plain values.

The runtime turns I/O into events, and the machine's `actions` into I/O; the simulator does the same without I/O. At most one
piece of trainer work is outstanding: each `actions.Work` is answered by exactly one of `WorkDone`.
"""

from __future__ import annotations

from dataclasses import dataclass

from psyche_core.client.machine.actions import StagePlace, Work
from psyche_core.coordinator.commands import Command
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.verification.words import Word
from psyche_core.wire.messages import Message


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
    """The p2p keys that are connected now. neighbours: those that the transport connects to, None for all members."""

    peers: frozenset[bytes]
    neighbours: frozenset[bytes] | None = None


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
class PayloadCheckFailed:
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
    """Our share is trained and its payload published under its hash. roots: see `Result`; nothing without verification."""

    height: int
    loss: float
    tokens: int
    seconds: float
    payload_hash: bytes
    payload_bytes: int
    roots: bytes = b""


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
class PartReady:
    """Our part in a stage of a challenge is served under its hash."""

    place: StagePlace
    payload_hash: bytes
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class PartFailed:
    """We cannot show our part: an earlier process of ours trained the share, or something failed. reason: one sentence."""

    place: StagePlace
    reason: str


@dataclass(frozen=True, slots=True)
class PartFetched:
    """A part of a challenge is here; its bytes have this hash."""

    payload_hash: bytes


@dataclass(frozen=True, slots=True)
class PartMissing:
    """Nobody sent a part of a challenge in time, or it is longer than the model allows."""

    payload_hash: bytes


@dataclass(frozen=True, slots=True)
class PartsChecked:
    """What is to be said about a judge of a challenge."""

    place: StagePlace
    judge: int
    word: Word


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The gradient of a challenged share. root: 32 bytes, over its chunks (`psyche_core.verification.merkle`)."""

    place: StagePlace
    root: bytes


@dataclass(frozen=True, slots=True)
class RecomputeFailed:
    """A challenged share could not be recomputed; the masters are unchanged. reason: one sentence.

    unusable: hash of a part whose signs are not those that the trainer committed to; nothing if that is not why.
    """

    place: StagePlace
    reason: str
    unusable: bytes = b""


@dataclass(frozen=True, slots=True)
class CommandAnswered:
    """A command was accepted (code None) or refused."""

    command: Command
    code: str | None


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """The user asked us to leave."""


@dataclass(frozen=True, slots=True)
class TimerExpired:
    """The time of a Remind is over."""

    tag: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing happened for a moment."""


_OfEachRun = (
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
WorkDone = _OfEachRun | Recomputed | RecomputeFailed
"""Answers to a piece of `Work`."""

Event = (
    StateSeen
    | MessageSeen
    | PeersSeen
    | BandwidthSeen
    | PayloadChecked
    | PayloadMissing
    | PayloadCheckFailed
    | _OfEachRun
    | ModelStored
    | StoreFailed
    | CommandAnswered
    | LeaveRequested
    | TimerExpired
    | TimePassed
    | PartReady
    | PartFailed
    | PartFetched
    | PartMissing
    | PartsChecked
    | Recomputed
    | RecomputeFailed
)
"""New kinds come last: the simulator's marks of runs contain the number of each event's kind."""
