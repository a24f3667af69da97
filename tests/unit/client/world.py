"""A small deterministic world for the client machine: real coordinator, real machines, virtual time, one seed.

Trainers are replaced by a hash chain over what was applied: two replicas are equal exactly when they applied the same results of
the same steps in the same order, which is what the machine is responsible for.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from psyche_core.client.machine import events as ev
from psyche_core.client.machine.epoch import EpochNotes
from psyche_core.client.machine.machine import ClientMachine, Timeouts
from psyche_core.config.run_config import Choice, parse_run_file
from psyche_core.coordinator import apply, new_state
from psyche_core.coordinator.assignment import shares
from psyche_core.coordinator.commands import Command, Join, RoundSettled, Tick
from psyche_core.coordinator.commands import Event as CoordinatorEvent
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import CoordinatorError
from psyche_core.telemetry import events as telemetry
from psyche_core.types import ClientState, NodeIdentity, RunState
from psyche_core.wire.messages import Finished, Message, Result, commitment_hash, sign_commitment, sign_join
from psyche_core.wire.signing import SecretKey

DESCRIPTION = hashlib.sha256(b"how the model is built").digest()

RUN = """
run_id = "world"
[config]
warmup_time = 20
cooldown_time = 2
max_round_train_time = 10
round_witness_time = 2
epoch_time = 400
total_steps = {total_steps}
init_min_clients = {min_clients}
min_clients = {min_clients}
witness_nodes = {witness_nodes}
global_batch_size_start = 12
global_batch_size_end = 12
global_batch_size_warmup_tokens = 0
verification_percent = 0
waiting_for_members_extra_time = 2
rounds_per_epoch = {rounds_per_epoch}
[model.LLM]
max_seq_len = 16
cold_start_warmup_steps = 0
architecture = "HfLlama"
data_type = "Pretraining"
data_location = "Dummy"
[model.LLM.checkpoint.Hub]
repo_id = "model"
[model.LLM.lr_schedule.Constant]
base_lr = 0.01
warmup_init_lr = 0.0
warmup_steps = 0
[model.LLM.optimizer.AdamW]
betas = [0.9, 0.95]
weight_decay = 0.1
eps = 1e-8
"""


INSTANCE = hashlib.sha256(b"world").digest()
"""Of every run played here."""


def join_of(key: SecretKey) -> Join:
    """The request to join of the member with this key."""
    return Join(NodeIdentity(key.public, key.public), sign_join(key, INSTANCE, key.public))


def _notes(member: Member) -> EpochNotes:
    assert member.machine.notes is not None
    return member.machine.notes


@dataclass
class Member:
    """One client of the world."""

    name: str
    key: SecretKey
    machine: ClientMachine
    weights: bytes = bytes(32)
    alive: bool = True
    busy: bool = False
    payloads: dict[bytes, bytes] = field(default_factory=dict)
    own: set[bytes] = field(default_factory=set)
    own_by_round: dict[tuple[int, int], bytes] = field(default_factory=dict)
    peer_sets: list[tuple[NodeIdentity, ...]] = field(default_factory=list)
    told: list[telemetry.Event] = field(default_factory=list)
    applied: list[tuple[int, tuple[bytes, ...]]] = field(default_factory=list)
    trained: list[tuple[int, int, ev.Share]] = field(default_factory=list)
    stop: ev.Stop | None = None
    last_delivery: float = 0.0
    peers: frozenset[bytes] = frozenset()
    incarnation: int = 0
    failed: set[tuple[int, int]] = field(default_factory=set)
    snapshots: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)


class World:
    """n clients, a coordinator, a network with random delays. `faults` may be edited by tests before or during a run."""

    def __init__(
        self,
        clients: int = 3,
        *,
        seed: int = 0,
        train_seconds: tuple[float, float] = (0.2, 0.6),
        stores: Collection[int] = (),
        **config: int,
    ) -> None:
        shape = {"total_steps": 9, "rounds_per_epoch": 3, "witness_nodes": 0, "min_clients": min(clients, 2), **config}
        text = RUN.replace("cooldown_time = 2", f"cooldown_time = {config.get('cooldown_time', 2)}")
        run = parse_run_file(text.format(**shape), source="world")
        self.random = random.Random(seed)
        self.now = 1_000_000.0
        self.train_seconds = train_seconds
        self.state: CoordinatorState = new_state(run.run_id, run.config, run.model, instance=INSTANCE)
        self.coordinator_events: list[CoordinatorEvent] = []
        self.refused: list[tuple[Command, str]] = []
        self.drop: Callable[[Member, Member, bytes], bool] = lambda source, target, payload_hash: False
        self.invalid: Callable[[Member, bytes], bool] = lambda member, payload_hash: False
        self.delay: Callable[[Member], float] = lambda member: 0.01 + 0.05 * self.random.random()
        self.train_delay: Callable[[Member], float] = lambda member: self.random.uniform(*self.train_seconds)
        self.deaf: Callable[[Member, Member, Message], bool] = lambda source, target, message: False
        self.fails: Callable[[Member, ev.Train], bool] = lambda member, work: False
        self.breaks: Callable[[Member, ev.Work], ev.WorkDone | None] = lambda member, work: None
        self.double: Callable[[Member], bool] = lambda member: False
        self.stores = stores
        self.sourceless: list[Member] = []
        self.store_seconds = 0.1
        self.close_seconds = 0.005
        self.store_fails: Callable[[Member], bool] = lambda member: False
        self.stored: list[tuple[str, int]] = []
        self.stored_weights: dict[str, bytes] = {}
        self.skip_states = False
        self.reminds = True
        self.live_messages: list[tuple[bytes, Message, int]] = []
        self.epoch_clients: dict[int, list[NodeIdentity]] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.members = [self._member(index) for index in range(clients)]
        self._at(0.0, self._tick)
        for member in self.members:
            self._deliver_state(member)
            self._at(0.25, lambda member=member: self._pass_time(member))

    def _member(self, index: int) -> Member:
        key = SecretKey(hashlib.sha256(b"world" + bytes((index,))).digest())
        identity = NodeIdentity(key.public, key.public)
        machine = ClientMachine(
            identity,
            "world",
            sign=lambda commitment: sign_commitment(key, INSTANCE, commitment),
            timeouts=Timeouts(payload=20.0, peers=3.0),
            can_store=index in self.stores,
        )
        return Member(f"client-{index}", key, machine)

    # ------------------------------------------------------------------------------------ time

    def _at(self, delay: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._order), call))

    def run(self, *, until: Callable[[], bool] | None = None, limit: float = 600.0) -> None:
        """Let time pass until every living member has stopped (or `until`); fails after `limit` virtual seconds."""
        end = self.now + limit
        done = until or (lambda: all(member.stop is not None for member in self.members if member.alive))
        while not done():
            self.now, _, call = heapq.heappop(self._queue)
            assert self.now < end, f"no end after {limit} virtual seconds in {self.state.run_state.name}, {self.state.progress}"
            call()

    def _tick(self) -> None:
        self._command(Tick(), None)
        self._at(0.25, self._tick)

    def _pass_time(self, member: Member) -> None:
        if member.alive and member.stop is None:
            self._feed(member, ev.TimePassed())
            self._at(0.25, lambda: self._pass_time(member))

    def add_member(self) -> Member:
        """Another client arrives now."""
        member = self._member(len(self.members))
        self.members.append(member)
        self._deliver_state(member)
        self._at(0.25, lambda: self._pass_time(member))
        return member

    def restart(self, member: Member) -> None:
        """The process dies and comes back at once, with nothing but its key; transports give it the live messages again."""
        fresh = self._member(self.members.index(member))
        member.machine, member.weights, member.busy = fresh.machine, bytes(32), False
        member.payloads, member.snapshots, member.incarnation = {}, {}, member.incarnation + 1
        self._deliver_state(member)
        for origin, message, _ in self.live_messages:
            if origin != member.key.public:
                self._later(member, ev.MessageSeen(origin, message))

    def kill(self, member: Member) -> None:
        """The process is gone; nobody is told."""
        member.alive = False
        for other in self.members:
            other.peers -= {member.key.public}
            self._at(0.1, lambda other=other: self._feed(other, ev.PeersSeen(other.peers)))

    # ------------------------------------------------------------------------------------ coordinator

    def _command(self, command: Command, sender: Member | None) -> None:
        code: str | None = None
        try:
            state, events = apply(self.state, command, int(self.now), self.random.getrandbits(64))
        except CoordinatorError as error:
            code = error.name
            if not isinstance(command, Tick):
                self.refused.append((command, code))
        else:
            self.coordinator_events.extend(events)
            if state != self.state:
                self.state = state
                if state.run_state is RunState.Warmup:
                    self.epoch_clients[state.progress.epoch] = [client.id for client in state.epoch.clients]
                for member in self.members:
                    self._deliver_state(member)
        if sender is not None and not isinstance(command, Join):
            self._later(sender, ev.CommandAnswered(command, code))

    def _deliver_state(self, member: Member) -> None:
        """As a backend does: in order; with `skip_states` late, and then only the newest."""
        late = self.random.random() if self.skip_states else 0.0
        moment = member.last_delivery = max(member.last_delivery, self.now + self.delay(member) + late)
        state = self.state
        self._at(moment - self.now, lambda: self._feed(member, ev.StateSeen(self.state if self.skip_states else state)))

    # ------------------------------------------------------------------------------------ clients

    def _later(self, member: Member, event: ev.Event, extra: float = 0.0) -> None:
        self._at(extra + self.delay(member), lambda: self._feed(member, event))

    def _feed(self, member: Member, event: ev.Event) -> None:
        if not member.alive or member.stop is not None:
            return

        for action in member.machine.handle(event, self.now):
            self._carry_out(member, action)

    def _carry_out(self, member: Member, action: ev.Action) -> None:
        match action:
            case ev.Stop():
                member.stop = action
            case ev.Tell():
                member.told.append(action.event)
            case ev.Join():
                self._at(self.delay(member), lambda: self._command(join_of(member.key), member))
            case ev.Send():
                self._at(self.delay(member), lambda: self._command(action.command, member))
            case ev.SetPeers():
                member.peer_sets.append(action.members)
                others = {m.key.public for m in self.members if m.alive and m is not member}
                member.peers = frozenset(p.p2p for p in action.members) & others
                self._later(member, ev.PeersSeen(member.peers))
            case ev.Broadcast():
                self.live_messages.append((member.key.public, action.message, action.tag))
                del self.live_messages[:-64]
                if isinstance(action.message, Finished):
                    self._check_finished(member, action.message)
                twin = self._twin(member, action.message) if self.double(member) else None
                for other in self.members:
                    if twin is not None and other is not member:
                        self._later(other, ev.MessageSeen(member.key.public, twin))
                    if other is not member and other.alive and not self.deaf(member, other, action.message):
                        self._later(other, ev.MessageSeen(member.key.public, action.message))
            case ev.FetchPayload():
                self._fetch(member, action)
            case ev.Expire() | ev.Prefetch() | ev.KeepResults():
                pass
            case ev.Remind():
                if self.reminds:
                    self._at(action.seconds, lambda: self._feed(member, ev.Reminded(action.tag)))
            case ev.StoreModel():
                self._store(member, action)
            case _:
                assert not member.busy, f"{member.name} was given two pieces of work"
                member.busy = True
                life = member.incarnation
                self._at(self._work_time(member, action), lambda: self._work(member, action, life))

    def _store(self, member: Member, action: ev.StoreModel) -> None:
        self.stored.append((member.name, action.step))
        location = Choice("Hub", {"repo_id": f"{member.name}/step-{action.step}"})
        failed = ev.StoreFailed(action.step, "the store is full")
        answer = failed if self.store_fails(member) else ev.ModelStored(action.step, location)
        self.stored_weights[location.settings["repo_id"]] = member.weights  # type: ignore[index]  # has settings
        self._later(member, answer, extra=self.store_seconds)

    def _twin(self, member: Member, message: Message) -> Message | None:
        """Another result for the same share, signed as well and served as well."""
        if not isinstance(message, Result):
            return None

        payload = hashlib.sha256(message.payload_hash).digest()
        payload_hash = hashlib.sha256(payload).digest()
        member.payloads[payload_hash] = payload
        commitment = commitment_hash(
            INSTANCE,
            epoch=message.epoch,
            step=message.step,
            seed=_notes(member).records[message.height].round.seed,
            share=message.share,
            trainer=member.key.public,
            payload_hash=payload_hash,
        )
        signature = sign_commitment(member.key, INSTANCE, commitment)
        return replace(message, payload_hash=payload_hash, commitment=commitment, signature=signature)

    def _check_finished(self, member: Member, message: Finished) -> None:
        """Finished means: done with this round, or soon, and holding the payloads of the one before that it waits for."""
        state, notes = member.machine.state, member.machine.notes
        assert state is not None
        assert notes is not None
        before, playing = state.round_at(message.height - 1), state.round_at(message.height)
        assert playing is not None
        slot = state.slot_of(member.machine.identity)
        if slot in shares(state, playing) and (message.epoch, message.height) not in member.failed:
            soon = notes.records[message.height].nearly_done and member.busy
            assert soon or (message.epoch, message.height) in member.own_by_round
        for other in self.members if before is not None and before.batches else ():
            place = state.slot_of(other.machine.identity)
            if place is None or message.height - 1 not in notes.records:
                continue

            now = member.machine._state.now  # its own clock, which stands while it sleeps
            waited_for = notes.delivering(notes.records[message.height], frozenset({place}), now=now)
            if waited_for and place in state.healthy_slots and place in shares(state, before):
                published = other.own_by_round.get((message.epoch, message.height - 1))
                assert published is not None
                assert published in member.payloads

    def _fetch(self, member: Member, action: ev.FetchPayload) -> None:
        for other in self.members:
            if action.payload_hash in other.payloads and other.alive and not self.drop(other, member, action.payload_hash):
                member.payloads[action.payload_hash] = other.payloads[action.payload_hash]
                valid = not self.invalid(member, action.payload_hash)
                self._later(member, ev.PayloadChecked(action.payload_hash, valid, action.tag))
                return

        self._later(member, ev.PayloadMissing(action.payload_hash), extra=0.5)

    def _work_time(self, member: Member, work: ev.Work) -> float:
        if isinstance(work, ev.CloseEpoch):
            return self.close_seconds
        return self.train_delay(member) if isinstance(work, ev.Train) else 0.005

    def _work(self, member: Member, work: ev.Work, life: int) -> None:
        if life != member.incarnation:
            return

        member.busy = False
        if member.alive:
            self._feed(member, self._result(member, work))

    def _result(self, member: Member, work: ev.Work) -> ev.Event:
        broken = self.breaks(member, work)
        if broken is not None:
            return broken

        match work:
            case ev.TakeSnapshot():
                manifest = hashlib.sha256(repr((work.step, member.weights)).encode()).digest()
                member.snapshots[manifest] = (work.step, member.weights)
                return ev.SnapshotTaken(work.step, manifest, 100, DESCRIPTION, 64, digest=hashlib.sha256(member.weights).digest())
            case ev.FetchModel():
                for other in self.members:
                    if other.alive and other.key.public in work.sources and work.manifest_hash in other.snapshots:
                        _, member.weights = other.snapshots[work.manifest_hash]
                        if work.build is not None:
                            assert work.descriptions[0] == (DESCRIPTION, 64)
                            return ev.ModelReady(hashlib.sha256(member.weights).digest(), 100, work.step)
                        assert not work.descriptions
                        return ev.ModelFetched(work.step, hashlib.sha256(member.weights).digest())
                return ev.ModelFetchFailed(work.step, "nobody had it")
            case ev.Load() if member in self.sourceless and work.state.model.LLM.checkpoint.name == "P2P":
                return ev.SourceMissing("nothing here says how the model is built")
            case ev.Load():
                return ev.ModelReady(hashlib.sha256(member.weights).digest(), 100, None)
            case ev.Train() if self.fails(member, work):
                member.failed.add((work.tag >> 20, work.height))
                return ev.TrainFailed(work.height, f"step {work.step} was not trained: no samples")
            case ev.Train():
                payload = hashlib.sha256(repr((member.name, work.step, work.share)).encode()).digest()
                payload_hash = hashlib.sha256(payload).digest()
                member.payloads[payload_hash] = payload
                member.own.add(payload_hash)
                member.own_by_round[(work.tag >> 20, work.height)] = payload_hash
                member.trained.append((work.tag >> 20, work.step, work.share))  # a cut round's step is trained again
                return ev.Trained(work.height, 5.0, 100, 0.5, payload_hash, len(payload))
            case ev.Apply():
                assert all(payload_hash in member.payloads for payload_hash in work.payload_hashes)
                assert work.own_accepted == bool(member.own & set(work.payload_hashes))
                results = tuple(sorted(work.payload_hashes))
                if results:
                    member.weights = hashlib.sha256(member.weights + repr((work.step, results)).encode()).digest()
                member.applied.append((work.step, results))
                return ev.Applied(work.height, 0.01)
            case ev.Digest():
                return ev.Digested(work.height, hashlib.sha256(member.weights).digest())
            case ev.CloseEpoch():
                return ev.EpochClosed(hashlib.sha256(member.weights).digest(), saved=True)

    # ------------------------------------------------------------------------------------ what tests look at

    def settled(self) -> list[RoundSettled]:
        """The coordinator's decisions about rounds."""
        return [event for event in self.coordinator_events if isinstance(event, RoundSettled)]

    def survivors(self) -> list[Member]:
        """Members still alive."""
        return [member for member in self.members if member.alive]


def with_a_slow_member_dropped() -> tuple[World, Member]:
    """A run of four in which a member was so slow for a while that it was dropped, and its end. Returns it and that member."""
    world = World(4, total_steps=60, rounds_per_epoch=60, min_clients=2)
    slow = world.members[2]
    world.run(until=lambda: world.state.progress.step == 4)
    world.train_delay = lambda member: 24.0 if member is slow else 0.4
    world.run(until=lambda: any(client.state is ClientState.Dropped for client in world.state.epoch.clients))
    world.train_delay = lambda member: 0.4
    world.run(limit=2000)
    return world, slow
