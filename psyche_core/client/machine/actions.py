"""Actions, which the client machine returns: what its surroundings are to do. Plain values.

The runtime carries them out with I/O, the simulator without (`psyche_core.client.actions`). At most one piece of trainer work is
outstanding: each `Work` action is answered by exactly one of the events named in its docstring, or by WorkFailed.
"""

from __future__ import annotations

from dataclasses import dataclass

from psyche_core.coordinator.commands import Command
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry.events import Event as ReportEvent
from psyche_core.types import BatchId, Decision, NodeIdentity
from psyche_core.verification.challenge import Challenge
from psyche_core.wire.messages import Message, Result

Share = tuple[BatchId, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """Ask the backend for membership of the next epochs."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a command to the coordinator; answered by CommandAnswered."""

    command: Command


@dataclass(frozen=True, slots=True)
class SetPeers:
    """Set the members to communicate with. seed: of their epoch, from which a transport may draw who is connected with whom."""

    members: tuple[NodeIdentity, ...]
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Seal a message and send it to all members until its tag expires."""

    message: Message
    tag: int


@dataclass(frozen=True, slots=True)
class FetchPayload:
    """Fetch and check a payload, and keep it until `tag` expires. sources: p2p keys, best first.

    Answered by PayloadChecked, PayloadMissing or PayloadCheckFailed.
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
class SetTimer:
    """Answer with Reminded after this many seconds, independently of work. tag: of the round it is about."""

    tag: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StoreModel:
    """Put the checkpoint saved after `step` into the store, independently of work; answered by ModelStored or StoreFailed."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True, order=True)
class StagePlace:
    """A stage of a challenge: round (`about`) and slot of the challenged share, and the round with which the stage began."""

    about: int
    trainer: int
    since: int


@dataclass(frozen=True, slots=True)
class ShowPart:
    """Prepare our part in a stage of a challenge and serve it as a blob until `tag` expires; answered by PartReady or PartFailed.

    In COMMIT, SIGNS and TIE_COMMIT: the signs of the trainer's delta before the share, with hashes of its chunks. In REVEAL and
    TIE_REVEAL: the drawn chunks, of the deltas if we are the trainer, else of the gradient that we recomputed. step: of the
    share. slot: ours.
    """

    place: StagePlace
    challenge: Challenge
    step: int
    slot: int
    tag: int


@dataclass(frozen=True, slots=True)
class FetchPart:
    """Fetch a part of a challenge and keep it until `tag` expires; answered by PartFetched or PartMissing.

    sources: p2p keys. Nothing longer than the model allows is fetched: what our own table of parameters says, not the sender.
    """

    payload_hash: bytes
    payload_bytes: int
    sources: tuple[bytes, ...]
    tag: int


@dataclass(frozen=True, slots=True)
class CheckParts:
    """Compare what a trainer opened with what a judge opened, without a model; answered by PartsChecked.

    result: the checked share's. trainers, judges: hashes of their parts. In SIGNS there is only the trainer's: it is to fit its
    root. Parts that do not fit what their givers committed to count as missing.
    """

    place: StagePlace
    challenge: Challenge
    step: int
    judge: int
    result: Result
    trainers: bytes
    judges: bytes


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
    payloads, in the same order; decision: what accepted them; data_index: first sample never assigned yet; generation: of the
    run.
    """

    height: int
    step: int
    payload_hashes: tuple[bytes, ...]
    own_accepted: bool
    epoch: int = 0
    commitments: tuple[bytes, ...] = ()
    decision: Decision | None = None
    data_index: int = 0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Digest:
    """Work: digest of the masters during a round; answered by Digested."""

    height: int


@dataclass(frozen=True, slots=True)
class CloseEpoch:
    """Work: full digest, evaluation and checkpoint after the last apply; answered by EpochClosed. step: last step applied.

    data_index: first sample never assigned yet. generation: of the run. decision: of that step, None if unknown.
    """

    epoch: int
    step: int
    data_index: int = 0
    generation: int = 0
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Work: publish the masters, now those after `step`, under `tag`; answered by SnapshotTaken or SnapshotFailed.

    withdrawn: tags of earlier snapshots that are offered no longer, so that few are kept on disk.
    """

    step: int
    tag: int
    withdrawn: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchModel:
    """Work: replace the masters by those of a manifest, fetching the pieces in which ours differ.

    sources: p2p keys that serve it. build: the state to build model, optimizer and data for first, None when they are built.
    descriptions: hash and length of the model's description as the sources report it, likeliest first; needed only with
    `build`. epoch, data_index, generation: of the run now, for the checkpoint from which the journal continues. epoch_end:
    whether the run knows the end of an epoch after this step. decision: of this step, None if unknown. Answered by
    ModelFetched, or with `build` by ModelReady, or by ModelFetchFailed.
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
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class Recompute:
    """Work: the gradient of another member's share, at the weights it had; answered by Recomputed or RecomputeFailed.

    The masters stay as they are. result: the checked one. signs: hash of the part with the signs of the trainer's delta, which
    say where it computed. The gradient is kept until `tag` expires, to open chunks of it.
    """

    place: StagePlace
    challenge: Challenge
    share: Share
    step: int
    result: Result
    signs: bytes
    tag: int


Work = Load | Train | Apply | Digest | CloseEpoch | TakeSnapshot | FetchModel | Recompute


@dataclass(frozen=True, slots=True)
class Notify:
    """Show this to people."""

    event: ReportEvent


@dataclass(frozen=True, slots=True)
class Stop:
    """The client is done. reason: one sentence. again: start over from our disk, with new connections."""

    reason: str
    success: bool
    again: bool = False


Action = (
    Join
    | Send
    | SetPeers
    | Broadcast
    | FetchPayload
    | Expire
    | KeepResults
    | Prefetch
    | SetTimer
    | StoreModel
    | ShowPart
    | FetchPart
    | CheckParts
    | Work
    | Notify
    | Stop
)
