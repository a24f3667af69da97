"""What a client knows about its epoch: its slot, the rounds seen, payloads and digests. Replaced as a whole at each epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

from psyche_core.client.machine.buffers import PayloadBuffer
from psyche_core.client.machine.replica.digests import DigestTracker
from psyche_core.client.machine.replica.resync_state import Resync
from psyche_core.client.machine.replica.snapshot_offers import SnapshotRequests
from psyche_core.client.machine.rounds.round import RoundRecord
from psyche_core.client.machine.rounds.waiting import Awaited, WaitingBudget, min_finished
from psyche_core.client.machine.verification.duties import Duties
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import ClientState, NodeIdentity, RunState
from psyche_core.wire.messages import Finished, Message, ModelDigest, Opening, Result

PLAYING = (RunState.RoundTrain, RunState.RoundWitness)
"""States in which rounds are played."""

ENTERABLE = (RunState.Warmup, *PLAYING)
"""States in which a member enters an epoch it has not entered yet."""

LOADABLE = (RunState.Warmup, RunState.RoundTrain)
"""States in which the model is loaded. Not while witnesses attest: it would lack what they are about to accept, and after a
return to an older state of the coordinator no running member has that."""

ENTERABLE_OR_OVER = (*ENTERABLE, RunState.Finished)
"""The same, and the end of the run, whose last epoch may still give us its model."""


def epoch_key(state: CoordinatorState) -> tuple[int, int]:
    """Identifies an epoch, abandoned ones included: their number does not grow."""
    return state.epoch.start_time, state.epoch.seed


def round_tag(epoch: int, height: int) -> int:
    """The transport tag of a round: grows over the whole run."""
    return (epoch << 20) + height


def possible_tags(message: Message) -> tuple[int, int]:
    """The lowest and the highest transport tag that an honest member sends a message with.

    They follow from what it signed: the round, or at least the epoch. An honest member signs few messages that name no round.
    """
    match message:
        case Result() | Finished() | Opening():
            tag = round_tag(message.epoch, message.height)
            return tag, tag
        case ModelDigest(ended=False):
            tag = round_tag(message.epoch, 0)
            return tag, tag
        case _:
            return round_tag(message.epoch, 0), round_tag(message.epoch + 1, 0) - 1


def masters_due(state: CoordinatorState) -> int:
    """The step whose results are in the masters of everybody who has caught up with `state` (protocol section 3).

    Round h is applied at the start of h + 2, the last trained rounds on entering the cooldown.
    """
    if state.run_state is RunState.Warmup:
        return state.epoch.start_step - 1

    current = state.current_round if state.run_state in PLAYING else None
    return state.progress.step - 1 if current is None else max(state.epoch.start_step - 1, current.step - 2)


def _finished(record: RoundRecord) -> Awaited:
    return Awaited("finished", record.finished, record.trainers)


@dataclass(slots=True)
class EpochNotes:
    """number: as in messages and statements. clients: by slot, which never move within an epoch (F4).

    slot: ours, None when we are not a member. since: when we first saw the epoch. opened_at: the newest height then, -1 before
    the first round: what an earlier process of ours may have trained is not trained again, since two results for one share
    prove equivocation (F7). saved: we have a checkpoint of its end; passed_on: when we last reported that we cannot store it.
    compare_due: digests must be compared again. waiting: how long we may still wait for each slot's results and Finished.
    reloaded: we looked on our disk for the model this epoch starts with; missing_reported_at: when we last told the coordinator
    that we cannot get it. loaded_stored: we loaded the stored checkpoint instead; stored_notified: people were told that it is a
    wrong one. waiting_notified: people were told that we take part from the next epoch on. ready_sent_at: when we last said that
    we are ready. own_offer: step and manifest of the masters that we offered last. duties: in challenges of shares.
    """

    key: tuple[int, int]
    number: int
    clients: tuple[NodeIdentity, ...]
    slot: int | None
    since: float
    opened_at: int = -1
    records: dict[int, RoundRecord] = field(default_factory=dict)
    payloads: PayloadBuffer = field(default_factory=PayloadBuffer)
    digests: DigestTracker = field(default_factory=DigestTracker)
    resync: Resync = field(default_factory=Resync)
    snapshot_requests: SnapshotRequests = field(default_factory=SnapshotRequests)
    newest: int = -1
    ready_sent: bool = False
    ready_sent_at: float = 0.0
    closed: bool = False
    closed_at: float = 0.0
    saved: bool = False
    passed_on: float | None = None
    compare_due: bool = False
    rejoin_asked: float | None = None
    rejoin_refused: bool = False
    waiting: WaitingBudget = field(default_factory=WaitingBudget)
    reloaded: bool = False
    missing_reported_at: float | None = None
    loaded_stored: bool = False
    stored_notified: bool = False
    waiting_notified: bool = False
    own_offer: tuple[int, bytes] | None = None
    duties: Duties = field(default_factory=Duties)
    slots: dict[bytes, int] = field(init=False)

    def __post_init__(self) -> None:
        self.slots = {client.p2p: slot for slot, client in enumerate(self.clients)}

    @property
    def done(self) -> bool:
        """Whether nothing of this epoch remains to apply or to close."""
        return self.closed or not self.records

    @property
    def decided(self) -> bool:
        """Whether everything trained in this epoch is decided and known to us, so that it can be finished in any case."""
        return not self.resync.diverged and all(
            record.applied or (record.settled_by is not None and not record.missed) for record in self.records.values()
        )

    @property
    def seed(self) -> int:
        """The epoch's seed. Each epoch draws another one, also the one that follows an abandoned warmup under the same number."""
        return self.key[1]

    @property
    def last_seed(self) -> int:
        """Seed of the newest round, or of the epoch before its first; distinguishes this history from a forgotten one."""
        newest = self.records.get(self.newest)
        return self.seed if newest is None else newest.round.seed

    def describes(self, state: CoordinatorState) -> bool:
        """Whether the state is still (or again) about this epoch."""
        return state.epoch.start_time == self.key[0] and state.epoch.seed == self.key[1]

    def healthy(self, state: CoordinatorState) -> bool:
        """Whether we are a healthy member of the epoch in `state`."""
        return self.slot is not None and self.describes(state) and state.epoch.clients[self.slot].state is ClientState.Healthy

    def last_step(self, state: CoordinatorState) -> int:
        """The last step trained in this epoch, or before it.

        The run's later progress does not matter for an epoch that we finish late.
        """
        rounds = self.records.values()
        return max((kept.round.step - (kept.round.drain or kept.unattested) for kept in rounds), default=state.progress.step - 1)

    def waited_for(self, record: RoundRecord, healthy: frozenset[int], *, now: float) -> frozenset[int]:
        """Healthy slots whose Finished of a round is worth waiting for (protocol F16)."""
        if len(record.finished) < min_finished(len(record.trainers)):
            return healthy  # called at almost every event, mostly this early

        done = healthy.intersection(record.finished)
        return done | self.waiting.waited_for(healthy - done, _finished(record), opened=record.opened_at, now=now)

    def delivering(self, record: RoundRecord, healthy: frozenset[int], *, now: float) -> frozenset[int]:
        """Healthy slots whose result of the previous round is worth waiting for in this round."""
        results = self._results_before(record, healthy)
        if results is None:
            return healthy

        done = healthy.intersection(results.times)
        return done | self.waiting.waited_for(healthy - done, results, opened=record.opened_at, now=now)

    def should_stop_waiting(self, record: RoundRecord, healthy: frozenset[int], *, now: float) -> bool:
        """Whether we should continue without results that we lack, because nobody else waits for them (protocol F16).

        Only without results of slots that have delayed us for long, as a member that withholds a result does. Not if the last
        settled round needed our statement: then there are as many liars as a quorum can bear, and a result that we do not
        attest to would not be accepted.
        """
        settled = self.records.get(record.height - 2)
        results = self._results_before(record, healthy)
        if self.slot is None or results is None or settled is None or not settled.accepted_without(self.slot):
            return False

        trainers = [slot for slot in record.trainers if slot in healthy]
        finished = Awaited("finished", record.finished, trainers)
        witnesses = len(record.witnesses)
        return self.waiting.should_stop_waiting(
            healthy.difference(results.times).intersection(results.expected),
            results,
            finished,
            own=self.slot,
            witnesses=witnesses,
            opened=record.opened_at,
            now=now,
        )

    def round_over(self, height: int, healthy: frozenset[int], *, now: float) -> None:
        """A round is over: record which slots delayed us in it."""
        ended = self.records.get(height)
        if ended is None:
            return

        for what in (self._results_before(ended, healthy), _finished(ended)):
            if what is not None:
                self.waiting.charge(what, opened=ended.opened_at, now=now)

    def _results_before(self, record: RoundRecord, healthy: frozenset[int]) -> Awaited | None:
        """The results needed in a round: those of the previous round, once our own work is done."""
        before = self.records.get(record.height - 1)
        return None if before is None else Awaited("results", *before.deliveries(healthy, since=record.ready_at))

    def next_to_apply(self) -> RoundRecord | None:
        """The oldest round whose results are not in our masters yet; drain rounds have none."""
        for record in self.records.values():  # in order of height
            if not record.applied and not record.round.drain:
                return record

        return None

    def masters_replaced(self, step: int) -> None:
        """Our masters are now those after `step`: older rounds are done, newer ones must be applied (again)."""
        for record in self.records.values():
            record.applied = record.round.step <= step and not record.unattested
            record.waiting_since = None
            record.digest, record.digest_asked = bytes(32), False

    def accepted_result(self, height: int, slot: int) -> Result | None:
        """The accepted result of a share that everybody applied; None where we do not know it."""
        record = self.records.get(height)
        result = None if record is None or slot not in record.accepted else record.decided_result(slot)
        return result if isinstance(result, Result) else None

    def previous_result(self, height: int, slot: int) -> Result | None:
        """The slot's last result before a round; None if it was not accepted, or is of a round that we do not know.

        After a refused one a delta does not follow from what its trainer committed to.
        """
        before = [record.height for record in self.records.values() if record.height < height and slot in record.shares]
        return self.accepted_result(max(before), slot) if before else None

    def tag(self, height: int) -> int:
        """Transport tag of one of our rounds."""
        return round_tag(self.number, height)
