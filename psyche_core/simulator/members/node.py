"""A simulated member: what the runtime does around the real client machine, in virtual time.

A crash loses what its process keeps (machine, payloads, received messages, snapshots); what is on disk (the masters of the last
finished epoch) stays if the fault says so. Work takes time.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

from psyche_core.client.machine import events as ev
from psyche_core.client.machine.epoch import masters_due
from psyche_core.client.machine.replica.resync_state import MAX_ATTEMPTS
from psyche_core.client.machine.rounds.settled_rounds import settled_rounds
from psyche_core.coordinator.checkpoints import loaded_from_hub
from psyche_core.coordinator.commands import Equivocation, Withdraw
from psyche_core.simulator.failure import Broken
from psyche_core.simulator.members.disk import Disk, Saved
from psyche_core.simulator.members.keys import INSTANCE, key_of, with_real_signatures
from psyche_core.simulator.members.process import Process
from psyche_core.simulator.replicas.replica import Payload, Replica, StepOrder
from psyche_core.simulator.sample_tracker import bits
from psyche_core.simulator.times import Durations
from psyche_core.wire.messages import Message, ModelOffer, Result, seal, unseal

if TYPE_CHECKING:
    from psyche_core.simulator.network import Letter
    from psyche_core.simulator.world import World

EMPTY_RESULT = hashlib.sha256(b"").digest()
"""The payload of any result that is all zeros: the same bytes for everybody, in every round."""

DESCRIPTION = hashlib.sha256(b"description").digest(), 64
"""Hash and length of the description of the run's model."""

SECONDS: dict[type[object], float] = {
    ev.Load: 0.4,
    ev.Apply: 0.02,
    ev.Digest: 0.005,
    ev.CloseEpoch: 0.1,
    ev.TakeSnapshot: 0.05,
    ev.FetchModel: 0.5,
    ev.StoreModel: 0.8,
}
"""Typical seconds of each kind of work except training; varied at random by up to one half."""

RESTART = 10.0
"""Virtual seconds until a member that gave up because its own work failed is started again."""


class Node(Process):
    """One member. store_fails: probability that storing a model fails."""

    store_fails: float = 0.2

    def __init__(self, world: World, index: int, *, chance: random.Random, liar: bool) -> None:
        super().__init__(world, index, chance=chance, liar=liar)
        self.lies: list[str] = []
        self.lying_chance: random.Random = random.Random()
        self.repeats: Payload | None = None
        self.empty_results: list[float] = []
        self.failing_work: list[float] = []
        self.failures: Counter[tuple[int, int]] = Counter()
        self.slowed: list[float] = []
        self.downlinks: list[float] = []
        self.full_disks: int = 0
        self.spoiled: bool = False
        self.replica: Replica = world.new_replica()
        self._order: StepOrder = StepOrder(self.name)
        self._generation = 0
        self.payloads: dict[bytes, tuple[int, Payload]] = {}
        self.snapshots: dict[bytes, tuple[int, int, object]] = {}
        self.expired_before: int = 0
        self.training: Durations = Durations()
        self._speed = 0.7 + 0.6 * chance.random()
        self.disk: Disk = Disk()
        self._withheld: dict[bytes, frozenset[int]] = {}
        self._trained = 0
        self._has_store = chance.random() < 0.6
        self._knows_the_model = chance.random() < 0.5

    def _forget(self, *, disk: bool) -> None:
        self.replica = self._world.new_replica()
        self._order = StepOrder(self.name)
        if not disk:
            self.disk = Disk()
        self.payloads, self.snapshots = {}, {}
        self.expired_before = 0

    # ------------------------------------------------------------------------------------ actions

    def _stop(self, action: ev.Stop) -> None:
        if action.again:
            self.trace(f"begins anew: {action.reason}")
            self.counts["began anew"] += 1
            self.crash()
            self._world.clock.after(self._chance.random(), self._begin_anew, self.life)
            return

        if not action.success and max(self.failures.values(), default=0) >= MAX_ATTEMPTS:
            # So much of its own work failed in one epoch that it may give up. Whoever runs it starts it again.
            self.trace(f"gives up: {action.reason}")
            self.counts["gave up for failing work"] += 1
            self.failures.clear()
            self.crash()
            self._world.clock.after(RESTART, self._begin_anew, self.life)
            return

        self.stop: ev.Stop | None = action
        self.running = False
        self.out: set[int] = set()
        self.trace(f"stops: {action.reason}")
        self._world.network.changed()
        self._world.stopped(self)

    def _tell(self, action: ev.Tell) -> None:
        if self._world.timeline is not None:
            self.trace(f"  {action.event}")

    def _join(self, action: ev.Join) -> None:  # noqa: ARG002 - carries nothing
        self.joined = True
        self._world.server.ask(self, self.join_command())

    def _send(self, action: ev.Send) -> None:
        command = action.command
        if isinstance(command, Withdraw):
            self.joined: bool = False
        elif isinstance(command, Equivocation):
            command = with_real_signatures(command)
        if self.lies:
            self._world.lies.send(self, command)
        else:
            self._world.server.ask(self, command)

    def _set_peers(self, action: ev.SetPeers) -> None:
        known = self._world.index_of
        self.peers: set[int] = {known[member.p2p] for member in action.members if member.p2p in known} - {self.index}
        self._world.network.changed()

    def _broadcast(self, action: ev.Broadcast) -> None:
        if self.lies:
            self._world.lies.broadcast(self, action.message, action.tag)
        else:
            self.say(action.message, action.tag)

    def say(self, message: Message, tag: int, *, held_back: dict[int, float] | None = None) -> None:
        """Broadcast a message."""
        if self._world.script.sealed:
            origin, read = unseal(seal(key_of(self.index), INSTANCE, message), run=INSTANCE)
            if (origin, read) != (self.identity.p2p, message):
                raise Broken("messages-travel-whole", f"{message} was read back as {read}")
        if message.__class__ is Result:
            self._world.announced.note(self.index, message)
        if self.liar and isinstance(message, ModelOffer) and message.manifest_hash != _manifest(self.replica.digest()):
            self._world.false_offers.add((self._world.server.state.generation, message.step))
        if self._world.timeline is not None:
            self.trace(f"says {message.__class__.__name__} {_brief(message)}")
        self._world.network.broadcast(self, message, tag, held_back=held_back)

    def _fetch_payload(self, action: ev.FetchPayload) -> None:
        self._world.network.fetch(self, action)

    def _expire(self, action: ev.Expire) -> None:
        before = self.expired_before = max(self.expired_before, action.before)
        self.letters: dict[int, Letter] = {number: letter for number, letter in self.letters.items() if letter.tag >= before}
        self.payloads = {known: item for known, item in self.payloads.items() if item[0] >= before}
        self.snapshots = {known: item for known, item in self.snapshots.items() if item[0] >= before}

    def _prefetch(self, action: ev.Prefetch) -> None:
        pass

    def _remind(self, action: ev.Remind) -> None:
        self._world.clock.after(action.seconds / self.clock_rate, self._reminded, self.life, action)

    def _reminded(self, life: int, action: ev.Remind) -> None:
        self.receive(life, ev.Reminded(action.tag))

    # ------------------------------------------------------------------------------------ serving others

    def serves(self, payload_hash: bytes, target: int) -> bool | None:
        """Whether this member sends a payload; None when it does not answer at all."""
        if payload_hash not in self.payloads:
            return False
        if payload_hash in self._withheld and target not in self._withheld[payload_hash]:
            self.counts["withhold"] += 1
            return None

        return True

    def withhold(self, payload_hash: bytes, served: frozenset[int]) -> None:
        """Serve a payload to these members only."""
        self._withheld[payload_hash] = served

    def serve_again(self, payload_hash: bytes) -> None:
        """Serve a payload to everybody again."""
        self._withheld.pop(payload_hash, None)

    def seconds_to_receive(self) -> float:
        """How much longer a payload takes on our downlink than on a fast one."""
        if not self.downlinks:
            return 0.0

        self.counts["slow-downlink"] += 1
        return max(self.downlinks) * self._world.train_seconds * (0.75 + 0.5 * self._chance.random())

    def _refuted(self, step: int, masters: object) -> bool:
        """Whether these masters of a step have another digest than the signed one, so that our machine must not use them."""
        state = self.machine.state
        signed = None if state is None else next((end.digest for end in state.ends if end.step == step), None)
        replica = self._world.new_replica()
        replica.restore(masters)
        return signed is not None and replica.digest() != signed

    def _made_up(self, step: int) -> Replica:
        """A model that liars made up for a step, the same for all of them."""
        replica = self._world.new_replica()
        replica.spoil(step)
        return replica

    def made_up_digest(self, step: int) -> bytes:
        """Its full digest."""
        return self._made_up(step).digest()

    def offers_made_up_model(self, epoch: int, step: int, *, seed: int, tag: int) -> ModelOffer:
        """Begin to serve it; returns the offer. seed: of the epoch; tag: until when it is served."""
        made_up = self._made_up(step)
        offer = _offer(epoch, step, seed, made_up.digest())
        self.snapshots[offer.manifest_hash] = (tag, step, made_up.snapshot())
        return offer

    # ------------------------------------------------------------------------------------ work

    def _work(self, action: ev.Work) -> None:
        kind = action.__class__
        seconds = self._world.train_seconds * self._speed if kind is ev.Train else SECONDS[kind]
        if self.slowed:
            self.counts["slow"] += 1
        seconds *= max(self.slowed, default=1.0) * (0.5 + self._chance.random())
        if kind is ev.Train:
            self.training.add(seconds)
        if self._world.timeline is not None and kind is not ev.Digest:
            self.trace(f"begins {kind.__name__} {_brief(action)}")
        self._world.clock.after(seconds, self._work_done, self.life, action, self.lineage)

    def _work_done(self, life: int, work: ev.Work, lineage: int) -> None:
        """lineage: of the state that the machine had seen when it requested the work."""
        if life != self.life:
            return
        if self.paused:
            self._world.clock.after(0.2, self._work_done, life, work, lineage)
            return

        if self.failing_work and work.__class__ is not ev.Load and self._chance.random() < max(self.failing_work):
            self.counts["failing-work"] += 1
            if self.machine.notes is not None:
                self.failures[self.life, self.machine.notes.number] += 1
            self.receive(life, ev.WorkFailed(work, f"{work.__class__.__name__} failed"))
            return

        self.receive(life, self._answer(work, lineage))

    def _answer(self, work: ev.Work, lineage: int) -> ev.Event:
        """Do a piece of work."""
        match work:
            case ev.Train():
                return self._train(work)
            case ev.Apply():
                return self._apply(work, lineage)
            case ev.Digest():
                return self._digest(work)
            case ev.CloseEpoch():
                return self._close_epoch(work, lineage)
            case ev.Load():
                return self._load(work, lineage)
            case ev.TakeSnapshot():
                return self._take_snapshot(work)
            case ev.FetchModel():
                return self._fetch_model(work, lineage)
            case _:
                assert_never(work)

    @property
    def holds_model(self) -> bool:
        """Whether others may rely on it for the run's model."""
        return self.running and not self.liar and self.machine.masters_at is not None

    def spoil(self, *, bit: int) -> None:
        """Flip a bit of the masters; until they are replaced, only their replacement is required of this replica.

        bit: a different one for each flip of a run, because no two such accidents are alike.
        """
        self.trace("a bit of its masters flips")
        self.spoiled = True
        self.replica.spoil(bit)

    def _load(self, work: ev.Load, lineage: int) -> ev.Event:
        state, checkpoint = work.state, work.state.model.LLM.checkpoint
        from_members = checkpoint.name == "P2P"
        self.disk.look_back(state)
        own = None if work.fresh else self.disk.checkpoint(state)
        if from_members and not self._knows_the_model and own is None:
            if not self.disk.begins_with_stored(state):
                return ev.SourceMissing("nothing here says how the model is built")
            checkpoint, from_members = loaded_from_hub(state.model).LLM.checkpoint, False

        self.replica = self._world.new_replica()
        self._order = StepOrder(self.name)
        self.spoiled = False
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
        signed = any(end.step == masters_due(state) for end in state.ends)
        held = self.disk.held(state) if step is None or step < masters_due(state) or not signed else ()
        return ev.ModelReady(self.replica.digest(), self.replica.max_payload_bytes, step, held, journalled=True)

    def _restored(self, work: ev.Load, step: int | None, lineage: int) -> int | None:
        """Apply the journal and the state to a checkpoint's masters; returns the last step in them."""
        state = work.state
        reached = (
            None if work.fresh else self.disk.replayed(state, step=step, digest=self.replica.digest(), room=not self.full_disks)
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
            if settled.step > masters_due(state) or not same_history:
                break
            self.counts["settled from the journal"] += 1
            payloads = {pending.payload_hash: payload for pending, payload in self.disk.pending.items()}
            hashes = tuple(payload_hash for _, payload_hash in settled.results)
            before = self.replica.snapshot()
            self.replica.apply(settled.step, [payloads[item] for item in hashes], own_accepted=False)
            commitments = tuple(commitment for commitment, _ in settled.results)
            applied = ev.Apply(settled.height, settled.step, hashes, False, commitments=commitments, generation=state.generation)
            self._world.applied(self, applied, payloads, lineage=lineage, before=before)
            entry = self._saved(settled.step, state.generation)
            entry = replace(entry, epoch=settled.epoch, height=settled.height, statements=settled.statements)
            self.disk.applied(entry, room=not self.full_disks)
            at = settled.step
        return at

    def _saved(self, step: int, generation: int) -> Saved:
        return Saved(step, generation, self.replica.snapshot(), self.replica.digest())

    def _base(self, step: int, generation: int) -> None:
        """Write a checkpoint, from which the journal continues."""
        if self.full_disks:
            self.counts["full-disk"] += 1
            return
        self.disk.save(self._saved(step, generation))

    def _begin(self, base: Saved) -> None:
        """Start the journal again, if the disk has room."""
        if self.full_disks:
            self.counts["full-disk"] += 1
            self.disk.suspend()
            return
        self.disk.begin(base)

    def _keep_results(self, action: ev.KeepResults) -> None:
        """Write verified results to the journal."""
        here = [known for known in action.results if known.result.payload_hash in self.payloads]
        self.disk.keep([(known, self.payloads[known.result.payload_hash][1]) for known in here])

    def _train(self, work: ev.Train) -> ev.Event:
        self._trained += 1
        if work.generation != self._generation:
            self._order, self._generation = StepOrder(self.name), work.generation
        self._order.trains(work.step)
        salt = b"%d/%d/%d" % (self.index, self.life, self._trained)
        payload_hash, content = self.replica.train(work.step, work.share, salt=salt)
        valid = "wrong-shape" not in self.lies
        empty = self.empty_results and not content and self._chance.random() < max(self.empty_results)
        if empty and valid:  # equal bytes have one shape, so no empty result has a wrong one
            self.counts["empty-results"] += 1
            payload_hash, content = EMPTY_RESULT, b""
        payload = Payload(payload_hash, self.index, bits(work.share), valid=valid, content=content, size=len(content) or 32)
        if not valid:
            self.counts["wrong-shape"] += 1
        self.payloads[payload_hash] = (work.tag, payload)
        return ev.Trained(work.height, 2.0, 64 * len(work.share), 0.5, payload_hash, payload.size)

    def _apply(self, work: ev.Apply, lineage: int) -> ev.Event:
        missing = [item for item in work.payload_hashes if item not in self.payloads]
        if missing and not self.liar:
            raise Broken("applies-what-it-holds", f"{self.name} applies step {work.step} without {len(missing)} of the payloads")

        held = {item: self.payloads[item][1] for item in work.payload_hashes if item in self.payloads}
        before = self.replica.snapshot()
        self._order.applies(work.step)
        self.replica.apply(
            work.step, [held[item] for item in work.payload_hashes if item in held], own_accepted=work.own_accepted
        )
        self._world.applied(self, work, held, lineage=lineage, before=before)
        if not self.spoiled:
            masters, digest = self.replica.snapshot(), self.replica.digest()
            saved = Saved(work.step, work.generation, masters, digest, work.epoch, work.height, work.statements)
            self.disk.applied(saved, room=not self.full_disks)
        return ev.Applied(work.height, 0.01)

    def _digest(self, work: ev.Digest) -> ev.Event:
        return ev.Digested(work.height, self.replica.digest())

    def _close_epoch(self, work: ev.CloseEpoch, lineage: int) -> ev.Event:
        masters = self.replica.snapshot()
        if not self.liar and not self.spoiled:
            self._world.replicas.closed(self.name, lineage=lineage, step=work.step, masters=masters)
        if not self.spoiled:
            self._base(work.step, work.generation)
        return ev.EpochClosed(self.replica.digest(), saved=not self.spoiled and not self.full_disks)

    def _store_model(self, action: ev.StoreModel) -> None:
        """Begin to store the masters of the epoch's end; uses a copy on the disk, which training does not change."""
        seconds = SECONDS[ev.StoreModel] * (0.5 + self._chance.random()) * max(self.slowed, default=1.0)
        self._world.clock.after(seconds, self._stored, self.life, action, self.disk.at_end(action.step))

    def _stored(self, life: int, action: ev.StoreModel, saved: Saved | None) -> None:
        if saved is None or self._chance.random() < self.store_fails:
            self.counts["store failed"] += 1
            self.receive(life, ev.StoreFailed(action.step, "the store is full"))
            return

        self.counts["stored"] += 1
        location = {"Hub": {"repo_id": f"{self.name}-step{action.step}"}}
        self._world.stored[location["Hub"]["repo_id"]] = (saved.masters, saved.step)
        self.receive(life, ev.ModelStored(action.step, location))

    def _take_snapshot(self, work: ev.TakeSnapshot) -> ev.Event:
        offer = _offer(0, work.step, 0, self.replica.digest())
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

    def _fetch_model(self, work: ev.FetchModel, lineage: int) -> ev.Event:
        network = self._world.network
        source, _ = network.find(self, work.sources, lambda other: work.manifest_hash in other.snapshots)
        if source is None:
            self.counts["model fetch failed"] += 1
            return ev.ModelFetchFailed(work.step, "nobody connected holds these masters any more")

        masters = source.snapshots[work.manifest_hash][2]
        if not self.liar and not self._refuted(work.step, masters):
            held = functools.partial(self._world.held, asker=self, step=work.step)
            self._world.replicas.fetched(self.name, lineage=lineage, step=work.step, masters=masters, held=held)
        if work.build is not None:
            if DESCRIPTION not in work.descriptions:
                if source.liar:  # no honest member is left that knows the true one
                    return ev.ModelFetchFailed(work.step, "the description does not fit")
                raise Broken(
                    "descriptions-come-with-offers", f"{self.name} has {len(work.descriptions)} descriptions, none is true"
                )
            self.counts["models built from others"] += 1
            self.replica = self._world.new_replica()
        self._order = StepOrder(self.name)
        self.replica.restore(masters)
        self.spoiled = False
        self._base(work.step, work.generation)
        self.counts["models fetched"] += 1
        if work.build is not None:
            return ev.ModelReady(self.replica.digest(), self.replica.max_payload_bytes, work.step)
        return ev.ModelFetched(work.step, self.replica.digest())


def _offer(epoch: int, step: int, seed: int, digest: bytes) -> ModelOffer:
    """An offer of the masters with this full digest."""
    return ModelOffer(epoch, step, seed, _manifest(digest), 256, *DESCRIPTION)


def _manifest(digest: bytes) -> bytes:
    """The hash of the manifest of masters with this full digest."""
    return hashlib.sha256(b"manifest" + digest).digest()


def _brief(value: Any) -> str:
    """The numbers of a message or of work, for the timeline."""
    shown = []
    for name in ("epoch", "height", "step", "share", "tag", "sources"):
        item = getattr(value, name, None)
        if item is not None and name in ("epoch", "height", "step"):
            shown.append(f"{name} {item}")
    return " ".join(shown)
