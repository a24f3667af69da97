"""What a client notes about the epoch it is in: its slot, the rounds seen, payloads and digests. Replaced whole at each epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

from psyche_core.client.agreement import DigestBook
from psyche_core.client.inbox import Inbox
from psyche_core.client.rounds import RoundRecord
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import ClientState, NodeIdentity, RunState

PLAYING = (RunState.RoundTrain, RunState.RoundWitness)


def epoch_key(state: CoordinatorState) -> tuple[int, int]:
    """Tells epochs apart, abandoned ones included: their number does not grow."""
    return state.epoch.start_time, state.epoch.start_step


def round_tag(epoch: int, height: int) -> int:
    """The transport tag of a round: grows over the whole run."""
    return (epoch << 20) + height


@dataclass(slots=True)
class EpochNotes:
    """number: as in messages and statements. clients: by slot, which never move within an epoch (F4).

    slot: ours, None when we are not a member. since: when we first saw the epoch.
    """

    key: tuple[int, int]
    number: int
    clients: tuple[NodeIdentity, ...]
    slot: int | None
    since: float
    records: dict[int, RoundRecord] = field(default_factory=dict)
    inbox: Inbox = field(default_factory=Inbox)
    digests: DigestBook = field(default_factory=DigestBook)
    ready_sent: bool = False
    closed: bool = False

    @property
    def newest(self) -> int:
        """Height of the newest round seen, -1 before the first."""
        return max(self.records, default=-1)

    @property
    def done(self) -> bool:
        """Nothing of this epoch is left to apply or to close."""
        return self.closed or not self.records

    @property
    def settled(self) -> bool:
        """Everything trained in this epoch is decided, so it can be finished whatever the coordinator does next."""
        return all(record.settled_by is not None for record in self.records.values())

    def slot_of_peer(self, p2p: bytes) -> int | None:
        """The slot of a p2p key."""
        return next((slot for slot, client in enumerate(self.clients) if client.p2p == p2p), None)

    def describes(self, state: CoordinatorState) -> bool:
        """Whether the state is still (or again) about this epoch."""
        return epoch_key(state) == self.key

    def healthy(self, state: CoordinatorState) -> bool:
        """Whether we are a healthy member of the epoch in `state`."""
        return self.slot is not None and self.describes(state) and state.epoch.clients[self.slot].state is ClientState.Healthy

    def last_step(self, state: CoordinatorState) -> int:
        """The last step trained in this epoch, or before it."""
        steps = [record.round.step for record in self.records.values() if not record.round.drain]
        return max(steps, default=state.progress.step - 1)

    def tag(self, height: int) -> int:
        """Transport tag of one of our rounds."""
        return round_tag(self.number, height)
