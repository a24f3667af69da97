"""Everything one client's machine knows, in one mutable object that the modules of the machine share."""

from __future__ import annotations

from dataclasses import dataclass, field

from psyche_core.client.machine.actions import Action, Expire, Notify, Send, Stop, Work
from psyche_core.client.machine.announcements import Figures
from psyche_core.client.machine.buffers import EarlyMessages
from psyche_core.client.machine.epoch import EpochNotes
from psyche_core.client.machine.replica.snapshot_offers import SnapshotOffers
from psyche_core.client.machine.rounds.finish_estimator import FinishEstimator
from psyche_core.client.machine.rounds.results import ResultTracker
from psyche_core.client.machine.timeouts import Timeouts
from psyche_core.coordinator.commands import Withdraw
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry import events as telemetry
from psyche_core.types import NodeIdentity


@dataclass(slots=True)
class Upload:
    """The upload of one epoch's model to the store. key: of the epoch. location: where it is; None while it is being stored.

    reported_at: when the coordinator was last told, None before; reports: how often. closed: it has answered, or it is too late,
    or storing failed.
    """

    key: tuple[int, int]
    step: int
    location: object = None
    reported_at: float | None = None
    reports: int = 0
    failed: bool = False
    closed: bool = False


@dataclass(slots=True)
class MachineState:
    """See the module. now: seconds that we were awake; clock: the last time of the caller's clock.

    notes: of the epoch we are in, or are finishing; None before the first. healthy: slots healthy in `state`. members,
    members_seed: the transport's peers as last set, and the seed that came with them; peers: p2p keys connected; neighbours:
    those that the transport connects to, None for all members. joined: whether this process joined; join_sent_at: when we last
    did, None once a state answers it. source_missing: nothing here says how the model is built, so all of it comes from others.
    leaving: when we began to leave; leaving_told: whether people know that we still show shares. masters_at: the step whose
    results are in our masters, None when unknown; masters_invalid: work on them failed, so their content is unknown.
    model_digest: their last full digest; digest_at: the step of that digest, None when unknown. journalled: we keep a
    journal. loaded_generation: of the run when we last loaded a model. held: steps and full digests of signed epoch ends on
    our disk. contested: generation and step of a model that an epoch starts with and of which members offered different ones,
    and the key of the first epoch in which they did. work: what the trainer is doing. can_store: whether there is a store for
    models of epoch ends; upload: the one in progress. finish_estimator: durations of our trainings and of the gaps between
    rounds. expired_before: tag below which everything was forgotten, here and in the transport.
    """

    identity: NodeIdentity
    run_id: str
    timeouts: Timeouts
    results: ResultTracker
    now: float = 0.0
    clock: float | None = None
    state: CoordinatorState | None = None
    stopped: Stop | None = None
    notes: EpochNotes | None = None
    expired_before: int = -1
    snapshot_offers: SnapshotOffers = field(default_factory=SnapshotOffers)
    early: EarlyMessages = field(default_factory=EarlyMessages)
    healthy: frozenset[int] = frozenset()
    members: tuple[NodeIdentity, ...] = ()
    members_seed: int = 0
    peers: frozenset[bytes] = frozenset()
    neighbours: frozenset[bytes] | None = None
    joined: bool = False
    join_sent_at: float | None = None
    leaving: float | None = None
    leaving_told: bool = False
    model_ready: bool = False
    source_missing: bool = False
    model_digest: bytes = bytes(32)
    digest_at: int | None = None
    masters_at: int | None = None
    held: dict[int, bytes] = field(default_factory=dict)
    loaded_generation: int = 0
    contested: tuple[int, int, tuple[int, int]] | None = None
    journalled: bool = False
    masters_invalid: bool = False
    work: Work | None = None
    can_store: bool = False
    upload: Upload | None = None
    figures: Figures = field(default_factory=Figures)
    finish_estimator: FinishEstimator = field(default_factory=FinishEstimator)
    actions: list[Action] = field(default_factory=list)

    def advance_clock(self, clock: float) -> None:
        """Time has passed. After a suspension, old messages are handled before timeouts end."""
        if self.clock is None:
            self.now = clock
        elif clock > self.clock:
            self.now += min(clock - self.clock, self.timeouts.absence)
        self.clock = clock

    def emit(self, *actions: Action) -> None:
        """Add actions."""
        self.actions.extend(actions)

    def expire(self, before: int) -> None:
        """Forget what has older tags, here and in the transport."""
        if before <= self.expired_before:
            return

        self.expired_before = before
        self.snapshot_offers.expire(before)
        self.emit(Expire(before))

    def notify(self, event: telemetry.Event) -> None:
        """Show something to people."""
        self.actions.append(Notify(event))

    def start(self, work: Work) -> None:
        """Start trainer work; the trainer must be idle."""
        self.work = work
        self.actions.append(work)

    def stop(self, reason: str, *, success: bool, again: bool = False) -> None:
        """Stop, or start over."""
        if self.stopped is None:
            self.stopped = Stop(reason, success, again)
            self.actions.append(self.stopped)

    def give_up(self, reason: str) -> None:
        """Withdraw, then stop."""
        if self.takes_part:
            self.emit(Send(Withdraw(self.identity)))
        self.stop(reason, success=False)

    @property
    def pending(self) -> bool:
        """Whether the coordinator expects us in its next epochs."""
        return self.state is not None and self.identity.signer in [member.signer for member in self.state.pending]

    @property
    def takes_part(self) -> bool:
        """Whether the coordinator expects us, now or in the next epoch."""
        return self.pending or (self.state is not None and self.notes is not None and self.notes.healthy(self.state))
