"""A simulated member's work: what its model, its journal and its checkpoints do, in virtual time. Work takes time.

A crash loses what its process keeps (payloads, snapshots, the model); what is on disk stays if the fault says so. What a member
sends and serves is in `node`.
"""

from __future__ import annotations

import functools
import hashlib
import random
from abc import abstractmethod
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.machine.epoch import masters_due
from psyche_core.client.machine.rounds.settled_rounds import settled_rounds
from psyche_core.coordinator.checkpoints import loaded_from_hub
from psyche_core.simulator.members.disk import Disk, SavedMasters, journal_rounds
from psyche_core.simulator.members.process import Process
from psyche_core.simulator.replicas.replica import Payload, Replica, StepOrder, empty_payload
from psyche_core.simulator.run_result import InvariantViolation
from psyche_core.simulator.sample_tracker import bits
from psyche_core.simulator.stragglers import TrainingTimes
from psyche_core.types import Decision
from psyche_core.wire.messages import ModelOffer

if TYPE_CHECKING:
    from psyche_core.simulator.network import Packet
    from psyche_core.simulator.world import World

DESCRIPTION = hashlib.sha256(b"description").digest(), 64
"""Hash and length of the description of the run's model."""

SECONDS: dict[type[object], float] = {
    act.Load: 0.4,
    act.Apply: 0.02,
    act.Digest: 0.005,
    act.CloseEpoch: 0.1,
    act.TakeSnapshot: 0.05,
    act.FetchModel: 0.5,
    act.StoreModel: 0.8,
}
"""Typical seconds of each kind of work except training; varied at random by up to one half."""


class Worker(Process):
    """The work of one member. store_fails: probability that storing a model fails."""

    store_fails: float = 0.2

    def __init__(self, world: World, index: int, *, rng: random.Random, liar: bool) -> None:
        super().__init__(world, index, rng=rng, liar=liar)
        self.lies: list[str] = []
        self.empty_results: list[float] = []
        self.failing_work: list[float] = []
        self.failures: Counter[tuple[int, int]] = Counter()
        self.slowed: list[float] = []
        self.full_disks: int = 0
        self.corrupted: bool = False
        self.replica: Replica = world.new_replica()
        self._order: StepOrder = StepOrder(self.name)
        self._generation = 0
        self.payloads: dict[bytes, tuple[int, Payload]] = {}
        self.snapshots: dict[bytes, tuple[int, int, object]] = {}
        self.expired_before: int = 0
        self.training: TrainingTimes = TrainingTimes()
        self.speed: float = 0.7 + 0.6 * rng.random()
        self._journal_rounds = journal_rounds(world.stream("journals"), world.stream(f"journal {index}"))
        self.disk: Disk = Disk(rounds=self._journal_rounds)
        self._trained = 0
        self._has_store = rng.random() < 0.6
        self._knows_the_model = rng.random() < 0.5

    def _forget(self, *, disk: bool) -> None:
        self.replica = self._world.new_replica()
        self._order = StepOrder(self.name)
        if not disk:
            self.disk = Disk(rounds=self._journal_rounds)
        self.payloads, self.snapshots = {}, {}
        self.expired_before = 0

    def _expire(self, action: act.Expire) -> None:
        before = self.expired_before = max(self.expired_before, action.before)
        self.packets: dict[int, Packet] = {number: packet for number, packet in self.packets.items() if packet.tag >= before}
        self.payloads = {known: item for known, item in self.payloads.items() if item[0] >= before}
        self.snapshots = {known: item for known, item in self.snapshots.items() if item[0] >= before}

    def _contradicts_signed(self, step: int, masters: object) -> bool:
        """Whether these masters of a step have another digest than the signed one, so that our machine must not use them."""
        state = self.machine.state
        signed = None if state is None else next((end.digest for end in state.ends if end.step == step), None)
        replica = self._world.new_replica()
        replica.restore(masters)
        return signed is not None and replica.digest() != signed

    def _work(self, action: act.Work) -> None:
        kind = action.__class__
        seconds = self._world.train_seconds * self.speed if kind in (act.Train, act.Recompute) else SECONDS[kind]
        if self.slowed:
            self.counts["slow"] += 1
        seconds *= max(self.slowed, default=1.0) * (0.5 + self._rng.random())
        if isinstance(action, act.Train):
            number = 0 if self.machine.notes is None else self.machine.notes.number
            self.training.add(seconds, place=(number, action.height), done_at=self._world.clock.now + seconds)
        if self._world.timeline is not None and kind is not act.Digest:
            self.trace(f"begins {kind.__name__} {described(action)}")
        self._world.clock.after(seconds, self._work_done, self.incarnation, action, self.lineage)

    def _work_done(self, incarnation: int, work: act.Work, lineage: int) -> None:
        """lineage: of the state that the machine had seen when it requested the work."""
        if incarnation != self.incarnation:
            return
        if self.paused:
            self._world.clock.after(0.2, self._work_done, incarnation, work, lineage)
            return

        if self.failing_work and work.__class__ is not act.Load and self._rng.random() < max(self.failing_work):
            self.counts["failing-work"] += 1
            if self.machine.notes is not None:
                self.failures[self.incarnation, self.machine.notes.number] += 1
            self.receive(incarnation, ev.WorkFailed(work, f"{work.__class__.__name__} failed"))
            return

        self.receive(incarnation, self._answer(work, lineage))

    def _answer(self, work: act.Work, lineage: int) -> ev.Event:
        """Do a piece of work."""
        match work:
            case act.Train():
                return self._train(work)
            case act.Apply():
                return self._apply(work, lineage)
            case act.Digest():
                return self._digest(work)
            case act.CloseEpoch():
                return self._close_epoch(work, lineage)
            case act.Load():
                return self._load(work, lineage)
            case act.TakeSnapshot():
                return self._take_snapshot(work)
            case act.FetchModel():
                return self._fetch_model(work, lineage)
            case act.Recompute():
                return self._recompute(work)
            case _:
                assert_never(work)

    @property
    def holds_model(self) -> bool:
        """Whether others may rely on it for the run's model."""
        return self.running and not self.liar and self.machine.masters_at is not None

    def holds_step(self, step: int) -> bool:
        """Whether others may rely on it for the model after `step`, or after a later one without results."""
        known = self.machine.masters_at
        return self.holds_model and known is not None and known >= step

    def corrupt(self, *, bit: int) -> None:
        """Flip a bit of the masters; until they are replaced, only their replacement is required of this replica.

        bit: a different one for each flip of a run, because no two such accidents are alike.
        """
        self.trace("a bit of its masters flips")
        self.corrupted = True
        self.replica.corrupt(bit)

    def _load(self, work: act.Load, lineage: int) -> ev.Event:
        state, checkpoint = work.state, work.state.model.LLM.checkpoint
        from_members = checkpoint.name == "P2P"
        self.disk.restore_earlier_journal(state)
        own = None if work.fresh else self.disk.checkpoint(state)
        if from_members and not self._knows_the_model and own is None:
            if not self.disk.reaches_stored(state):
                return ev.SourceMissing("nothing here says how the model is built")
            checkpoint, from_members = loaded_from_hub(state.model).LLM.checkpoint, False

        self.replica = self._world.new_replica()
        self._order = StepOrder(self.name)
        self.corrupted = False
        stored = None if from_members else self._world.stored.get((checkpoint.settings or {}).get("repo_id", ""))
        newer_stored = own is not None and stored is not None and own.step < state.stored.step <= masters_due(state)
        if own is not None and (from_members or not newer_stored):
            self.replica.restore(own.masters)
        else:
            own = None
            if stored is not None:
                self.replica.restore(stored[0])
        signed_stored = own is None and not from_members and state.stored.digest == self.replica.digest()
        loaded = own.step if own is not None else state.stored.step if signed_stored else None
        step = self._restored(work, loaded, lineage)
        if not work.fresh and step != masters_due(state) and self.disk.saved_signed(state):
            raise InvariantViolation(
                "signed-checkpoints-are-found",
                f"{self.name} starts at step {step}, and has step {masters_due(state)} on its disk",
            )
        signed = any(end.step == masters_due(state) for end in state.ends)
        held = self.disk.held(state) if step is None or step < masters_due(state) or not signed else ()
        if own is not None and step is not None:
            held += ((step, self.replica.digest()),)
        return ev.ModelReady(self.replica.digest(), self.replica.max_payload_bytes, step, held, journalled=True)

    def _restored(self, work: act.Load, step: int | None, lineage: int) -> int | None:
        """Apply the journal and the state to a checkpoint's masters; returns the last step in them."""
        state = work.state
        reached = (
            None
            if work.fresh
            else self.disk.replayed(state, step=step, digest=self.replica.digest(), can_write=not self.full_disks)
        )
        if reached is None:
            base = state.epoch.start_step - 1 if step is None and state.from_checkpoint else step
            if base is not None:
                self._begin(self._saved(base, state.generation))
            return step

        saved, same_history = reached
        self.replica.restore(saved.masters)
        at = saved.step
        for settled in settled_rounds(state, self.disk.pending, after=at):  # type: ignore[arg-type] # the fields it uses
            decision = settled.decision
            if decision.step > masters_due(state) or not same_history:
                break
            self.counts["settled from the journal"] += 1
            payloads = {pending.payload_hash: payload for pending, payload in self.disk.pending.items()}
            hashes = tuple(payload_hash for _, payload_hash in settled.results)
            before = self.replica.snapshot()
            self.replica.apply(decision.step, [payloads[item] for item in hashes], own_accepted=False)
            commitments = tuple(commitment for commitment, _ in settled.results)
            applied = act.Apply(
                decision.height, decision.step, hashes, False, commitments=commitments, generation=state.generation
            )
            self._world.applied(self, applied, payloads, lineage=lineage, before=before)
            self.disk.applied(self._saved(decision.step, state.generation, decision), can_write=not self.full_disks)
            at = decision.step
        return at

    def _saved(self, step: int, generation: int, decision: Decision | None = None) -> SavedMasters:
        return SavedMasters(step, generation, self.replica.snapshot(), self.replica.digest(), decision)

    def _base(self, work: act.CloseEpoch | act.FetchModel) -> None:
        """Write a checkpoint, from which the journal continues."""
        if self.full_disks:
            self.counts["full-disk"] += 1
            if isinstance(work, act.FetchModel):
                self.disk.suspend()  # its rounds do not lead to these masters
            return
        at_end = work.__class__ is act.CloseEpoch or (isinstance(work, act.FetchModel) and work.epoch_end)
        self.disk.save(replace(self._saved(work.step, work.generation, work.decision), mid_epoch=not at_end))

    def _begin(self, base: SavedMasters) -> None:
        """Start the journal again, if the disk has room."""
        if self.full_disks:
            self.counts["full-disk"] += 1
            self.disk.suspend()
            return
        self.disk.begin(base)

    def _keep_results(self, action: act.KeepResults) -> None:
        """Write verified results to the journal."""
        here = [known for known in action.results if known.result.payload_hash in self.payloads]
        self.disk.keep([(known, self.payloads[known.result.payload_hash][1]) for known in here])

    def _train(self, work: act.Train) -> ev.Event:
        self._trained += 1
        if work.generation != self._generation:
            self._order, self._generation = StepOrder(self.name), work.generation
        self._order.trains(work.step)
        salt = b"%d/%d/%d" % (self.index, self.incarnation, self._trained)
        payload_hash, content = self.replica.train(work.step, work.share, salt=salt)
        valid = "wrong-shape" not in self.lies
        empty = self.empty_results and not content and self._rng.random() < max(self.empty_results)
        payload = Payload(payload_hash, self.index, bits(work.share), valid=valid, content=content, size=len(content) or 32)
        if empty and valid:
            self.counts["empty-results"] += 1
            payload = empty_payload(self.index, bits(work.share))
            payload_hash = payload.hash
        if not valid:
            self.counts["wrong-shape"] += 1
        known, _ = self.payloads.get(payload_hash, (work.tag, payload))
        self.payloads[payload_hash] = (
            max(known, work.tag),
            payload,
        )  # as stores do: equal results of an older round shorten nothing
        return ev.Trained(work.height, 2.0, 64 * len(work.share), 0.5, payload_hash, payload.size, self._roots(work))

    @abstractmethod
    def _recompute(self, work: act.Recompute) -> ev.Event:
        """The answer to recomputing another member's share."""

    @abstractmethod
    def _roots(self, work: act.Train) -> bytes:
        """Roots of the deltas with this contribution and without; nothing in runs whose shares are not checked."""

    def _apply(self, work: act.Apply, lineage: int) -> ev.Event:
        missing = [item for item in work.payload_hashes if item not in self.payloads]
        if missing and not self.liar:
            raise InvariantViolation(
                "applies-what-it-holds", f"{self.name} applies step {work.step} without {len(missing)} of the payloads"
            )

        held = {item: self.payloads[item][1] for item in work.payload_hashes if item in self.payloads}
        before = self.replica.snapshot()
        self._order.applies(work.step)
        self.replica.apply(
            work.step, [held[item] for item in work.payload_hashes if item in held], own_accepted=work.own_accepted
        )
        self._world.applied(self, work, held, lineage=lineage, before=before)
        if not self.corrupted:
            self.disk.applied(self._saved(work.step, work.generation, work.decision), can_write=not self.full_disks)
        return ev.Applied(work.height, 0.01)

    def _digest(self, work: act.Digest) -> ev.Event:
        return ev.Digested(work.height, self.replica.digest())

    def _close_epoch(self, work: act.CloseEpoch, lineage: int) -> ev.Event:
        masters = self.replica.snapshot()
        if not self.liar and not self.corrupted:
            self._world.replicas.closed(self.name, lineage=lineage, step=work.step, masters=masters)
        if not self.corrupted:
            self._base(work)
        return ev.EpochClosed(self.replica.digest(), saved=not self.corrupted and not self.full_disks)

    def _store_model(self, action: act.StoreModel) -> None:
        """Begin to store the masters of the epoch's end; uses a copy on the disk, which training does not change."""
        seconds = SECONDS[act.StoreModel] * (0.5 + self._rng.random()) * max(self.slowed, default=1.0)
        self._world.clock.after(seconds, self._stored, self.incarnation, action, self.disk.at_end(action.step))

    def _stored(self, incarnation: int, action: act.StoreModel, saved: SavedMasters | None) -> None:
        if saved is None or self._rng.random() < self.store_fails:
            self.counts["store failed"] += 1
            self.receive(incarnation, ev.StoreFailed(action.step, "the store is full"))
            return

        self.counts["stored"] += 1
        location = {"Hub": {"repo_id": f"{self.name}-step{action.step}"}}
        self._world.stored[location["Hub"]["repo_id"]] = (saved.masters, saved.step)
        self.receive(incarnation, ev.ModelStored(action.step, location))

    def _take_snapshot(self, work: act.TakeSnapshot) -> ev.Event:
        offer = offer_of(0, work.step, 0, self.replica.digest())
        self.snapshots = {known: item for known, item in self.snapshots.items() if item[0] not in work.withdrawn}
        self.snapshots[offer.manifest_hash] = (work.tag, work.step, self.replica.snapshot())
        self.counts["snapshots"] += 1
        return ev.SnapshotTaken(
            work.step,
            offer.manifest_hash,
            offer.manifest_bytes,
            offer.description_hash,
            offer.description_bytes,
            digest=self.replica.digest(),
        )

    def _fetch_model(self, work: act.FetchModel, lineage: int) -> ev.Event:
        network = self._world.network
        source, _ = network.find(self, work.sources, lambda other: work.manifest_hash in other.snapshots)
        if source is None:
            self.counts["model fetch failed"] += 1
            return ev.ModelFetchFailed(work.step, "nobody connected holds these masters any more")

        masters = source.snapshots[work.manifest_hash][2]
        if not self.liar and not self._contradicts_signed(work.step, masters):
            held = functools.partial(self._world.held, requester=self, step=work.step)
            self._world.replicas.fetched(self.name, lineage=lineage, step=work.step, masters=masters, held=held)
        if work.build is not None:
            if DESCRIPTION not in work.descriptions:
                if source.liar:  # no honest member is left that knows the true one
                    return ev.ModelFetchFailed(work.step, "the description does not fit")
                raise InvariantViolation(
                    "descriptions-come-with-offers", f"{self.name} has {len(work.descriptions)} descriptions, none is true"
                )
            self.counts["models built from others"] += 1
            self.replica = self._world.new_replica()
        self._order = StepOrder(self.name)
        self.replica.restore(masters)
        self.corrupted = False
        self._base(work)
        self.counts["models fetched"] += 1
        if work.build is not None:
            return ev.ModelReady(self.replica.digest(), self.replica.max_payload_bytes, work.step)
        return ev.ModelFetched(work.step, self.replica.digest())


def offer_of(epoch: int, step: int, seed: int, digest: bytes) -> ModelOffer:
    """An offer of the masters with this full digest."""
    return ModelOffer(epoch, step, seed, manifest_of(digest), 256, *DESCRIPTION)


def manifest_of(digest: bytes) -> bytes:
    """The hash of the manifest of masters with this full digest."""
    return hashlib.sha256(b"manifest" + digest).digest()


def described(value: Any) -> str:
    """The numbers of a message or of work, for the timeline."""
    shown = []
    for name in ("epoch", "height", "step", "share", "tag", "sources"):
        item = getattr(value, name, None)
        if item is not None and name in ("epoch", "height", "step"):
            shown.append(f"{name} {item}")
    return " ".join(shown)
