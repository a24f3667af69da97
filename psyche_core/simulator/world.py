"""One simulated run of a script: sets everything up and advances time until the run is over or an invariant breaks.

Random streams are derived from the seed by name (the network, the server, each member, each liar), so that removing a fault
from a script leaves the other streams unchanged.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from psyche_core.client.machine import events as ev
from psyche_core.client.machine.epoch import PLAYING, masters_due
from psyche_core.config.run_config import Choice, CoordinatorConfig, LLMConfig, ModelConfig
from psyche_core.coordinator import new_state
from psyche_core.coordinator.commands import SetFutureEpochRates
from psyche_core.coordinator.round.witness import tolerated
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.simulator.clock import Clock
from psyche_core.simulator.failure import Broken, SimFailure
from psyche_core.simulator.injection.faults import Faults
from psyche_core.simulator.injection.lies import Lies
from psyche_core.simulator.invariants.coordinator_watch import CoordinatorWatch, attested_digests
from psyche_core.simulator.invariants.replica_watch import ProgressWatch, ReplicaWatch
from psyche_core.simulator.members.keys import INSTANCE, RUN_ID, identity_of, member_with
from psyche_core.simulator.members.node import Node
from psyche_core.simulator.members.process import Process
from psyche_core.simulator.network import Network
from psyche_core.simulator.owner import Owner
from psyche_core.simulator.replicas.announced import Announced
from psyche_core.simulator.replicas.replica import HashReplica, Payload, Replica
from psyche_core.simulator.script import NETWORK_FAULTS, NO_EXCUSE, Script
from psyche_core.simulator.server import EPOCH_OF_TIME, Server
from psyche_core.simulator.times import StepTimes

WATCH = 2.0
"""Virtual seconds between two checks of the run's progress."""

PATIENCE = 60.0
"""Virtual seconds without progress that are allowed beyond what the configuration explains."""

ENDING = 60.0
"""Virtual seconds after the run's end within which every honest member must have stopped."""

MUCH_SLOWER = 1.2
"""A member may be left behind if its training takes this many times as long as every other member's. It is then late by about a
sixth of each round, and gets 15 % (F16)."""

RECOVERY = 15.0
"""Virtual seconds that a member may need after its start until others can get what it holds."""

REMEMBER = 300.0
"""Virtual seconds for which the server's older states are kept, if they are needed."""

AFTERMATH = 15.0
"""Virtual seconds that a member may need to return after a fault; a run that ends meanwhile may end without it."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run. failure: None when every invariant held. mark: a number that is equal for equal runs.

    seconds: virtual; step_seconds: virtual, median of a step after the first ten; finished_at: virtual seconds at which the
    coordinator's run ended, 0 if it did not; events: calls of machines; counts: of each fault that struck, each refusal, each
    repair.
    """

    seed: int
    failure: SimFailure | None
    seconds: float
    events: int
    steps: int
    epochs: int
    mark: int
    step_seconds: float = 0.0
    finished_at: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    end_reasons: tuple[str, ...] = ()


class World:
    """A run of a script. timeline: if given, gets an entry (virtual seconds, who, what) for everything that happens.

    member: the class of its members; tests use one that they can interfere with. all_lost_in: the epoch in which all honest
    members lost memory and disk at once, None without one. false_offers: generation and step of models that liars offered.
    """

    member: type[Node] = Node

    def __init__(self, script: Script, *, timeline: list[tuple[float, str, str]] | None = None) -> None:
        self.script = script
        self.timeline = timeline
        self.counts: Counter[str] = Counter()
        self.clock: Clock = Clock()
        self.handled: int = 0
        self.mark: int = script.seed
        self.stored: dict[str, tuple[object, int]] = {}
        self.train_seconds: float = script.shape.train_seconds
        self.index_of: dict[bytes, int] = {identity_of(index).p2p: index for index in range(script.clients)}
        liars = script.liars
        honest = frozenset(identity_of(index).signer for index in range(script.clients) if index not in liars)
        self.announced: Announced = Announced()
        kinds = {fault.kind for fault in script.faults}
        self.coordinator: CoordinatorWatch = CoordinatorWatch(
            honest=honest, announced=self._has_announced, left_behind=self._left_behind, calm=kinds <= set(NO_EXCUSE)
        )
        self.replicas: ReplicaWatch = ReplicaWatch(lambda: self.coordinator.sample_tracker, initial=self.new_replica().snapshot())
        self.progress: ProgressWatch = ProgressWatch(bound=_bound(script), calm_after=script.calm_after)
        self.network: Network = Network(self.clock, self.stream("network"), seconds=script.shape.link_seconds, counts=self.counts)
        state = new_state(RUN_ID, _config(script), _MODEL, now=EPOCH_OF_TIME, instance=INSTANCE)
        self.server: Server = Server(
            state,
            self.clock,
            self.network,
            chance=self.stream("server"),
            watch=self.coordinator,
            counts=self.counts,
            sealed=script.sealed,
            withdraw_after=script.shape.withdraw_after,
            remember=REMEMBER if kinds & {"older-state", "slow-rpc"} else 0.0,
            with_tracker="older-state" in kinds,
        )
        self.server.went_back = self._went_back
        self.times: StepTimes = StepTimes()
        self.server.changed = self._changed
        self.owner: Owner = Owner(self, calm_after=script.calm_after)
        self.lies: Lies = Lies(self.clock, self.server, network=self.network, members=script.clients, counts=self.counts)
        self.nodes: list[Node] = [self._node(index, liar=index in liars) for index in range(script.clients)]
        self._finished_at: float | None = None
        self.all_lost_in: int | None = None
        self.false_offers: set[tuple[int, int]] = set()
        self.server.take(_RATES)
        faults = Faults(self)
        for fault in script.faults:
            self.clock.after(fault.start, faults.begin, fault)

    def _left_behind(self, signer: bytes) -> bool:
        """Whether a member's average training was so much longer than every other's that it is no longer waited for (F16)."""
        means = {identity_of(node.index).signer: node.training.mean for node in self.nodes if node.training.count}
        others = [mean for other, mean in means.items() if other != signer]
        return signer in means and bool(others) and means[signer] > MUCH_SLOWER * max(others)

    def stream(self, name: str) -> random.Random:
        """The random stream with this name."""
        return random.Random(f"{self.script.seed}/{name}")

    def _node(self, index: int, *, liar: bool) -> Node:
        node = self.member(self, index, chance=self.stream(f"node {index}"), liar=liar)
        node.lying_chance = self.stream(f"liar {index}")
        self.network.add(node)
        late = [fault for fault in self.script.faults if fault.kind == "late" and index in fault.nodes]
        for fault in late:
            self.counts["late"] += 1
            self.clock.after(fault.end, self._boot_late, node)
        if not late:
            node.boot()
        return node

    def _boot_late(self, node: Node) -> None:
        if not node.running and node.stop is None and not self.server.finished:
            node.boot()

    def new_replica(self) -> Replica:
        """A model as in the run's checkpoint."""
        if self.script.trainer == "torch":
            from psyche_core.simulator.replicas.torch_replica import TorchReplica

            return TorchReplica()
        return HashReplica()

    def note(self, who: str, what: str) -> None:
        """Add a line to the timeline."""
        if self.timeline is not None:
            self.timeline.append((self.clock.now, who, what))

    # ------------------------------------------------------------------------------------ the run

    def run(self) -> RunResult:
        """Advance time until the end. Never raises for what is simulated: the result says what broke."""
        failure = None
        try:
            self._play()
        except Broken as broken:
            failure = SimFailure(invariant=broken.invariant, time=self.clock.now, sentence=broken.sentence, script=self.script)
        progress = self.server.state.progress
        return RunResult(
            seed=self.script.seed,
            failure=failure,
            seconds=self.clock.now,
            events=self.handled,
            steps=progress.step - 1,
            epochs=progress.epoch,
            mark=self.mark & (2**64 - 1),
            step_seconds=self.times.median,
            finished_at=self.times.finished_at,
            counts=dict(self.counts),
            end_reasons=tuple(self.coordinator.end_reasons),
        )

    def _play(self) -> None:
        due = 0.0
        clock = self.clock
        while True:
            clock.step()
            if clock.now >= due:
                due = clock.now + WATCH
                self._look()
                if self._over():
                    break

        self._look_back()

    def _look_back(self) -> None:
        """Check what must hold at the end."""
        self.replicas.over()
        final = self.server.state.progress.step - 1
        for node in self._honest():
            if node.stop is not None and not node.left and not self._excused(node):
                self.replicas.finished(node.name, step=final, masters=node.replica.snapshot())

    def _look(self) -> None:
        if self.server.finished:
            self._finished_at = self.clock.now if self._finished_at is None else self._finished_at
            overdue = self.clock.now - max(self._finished_at, self.script.calm_after) > ENDING
            waiting = [node.name for node in self._honest() if node.running]
            if overdue and waiting:
                raise Broken(
                    "honest-members-end", f"{', '.join(waiting)} did not stop within {ENDING:.0f} s of the end of the run"
                )
        else:
            self.progress.look(self.server.state, self.clock.now)

    def _over(self) -> bool:
        if self.owner.gave_up:
            self.counts["nobody has the model"] += 1
            return True

        return self.server.finished and self.server.up and not any(node.running for node in self._honest())

    def _honest(self) -> list[Node]:
        return [node for node in self.nodes if not node.liar]

    def _excused(self, node: Node) -> bool:
        """Whether a member could not be expected to have the final model: the run ended while it was away.

        It was away if it was not healthy in the last epoch, or if a fault hit it shortly before the end or later. Nor could it
        if in the last epoch all honest members lost memory and disk at once.
        """
        if not self.server.finished:
            return False

        state = self.server.state
        if self.all_lost_in == state.progress.epoch - 1:
            return True

        slot = state.slot_of(node.identity)
        if slot is None or slot not in state.healthy_slots:
            return True

        ended = self._finished_at if self._finished_at is not None else self.clock.now
        return any(
            fault.end > ended - AFTERMATH
            and (
                not fault.nodes
                or node.index in fault.nodes
                or fault.kind in NETWORK_FAULTS
                or fault.kind in ("all-die", "older-state")
            )
            for fault in self.script.faults
            if fault.kind not in NO_EXCUSE and fault.start <= self.clock.now
        )

    def stopped(self, node: Node) -> None:
        """A member's machine returned Stop."""
        stop = node.stop
        assert stop is not None
        if node.liar:
            return

        if not stop.success and self._excused(node):
            self.counts["excused at the end"] += 1
        elif not stop.success:
            raise Broken("honest-members-succeed", f"{node.name} gave up: {stop.reason}")
        elif not node.left and not self.server.finished:
            raise Broken("honest-members-stay", f"{node.name} ended before the run did: {stop.reason}")

    def raised(self, node: Process, event: ev.Event, error: Exception) -> None:
        """A machine raised an exception: always a bug, also with a liar."""
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rpartition('/')[2]}:{where.lineno}"
        raise Broken(
            "nothing-raises", f"the machine of {node.name} raised {error!r} at {place} on {type(event).__name__}"
        ) from error

    # ------------------------------------------------------------------------------------ what the others ask

    def _has_announced(self, signer: bytes, place: tuple[int, int]) -> bool:
        return member_with(signer, self.script.clients) in self.announced.by(place)

    def _changed(self, state: CoordinatorState, now: float) -> None:
        """The coordinator's phase or progress has changed. now: virtual seconds."""
        self.times.look(state, now)
        self.owner.looks(state)

    def _went_back(self, lineage: int, before: CoordinatorState, state: CoordinatorState, *, of: int) -> None:
        """The coordinator continues from an older state or step; later decisions are forgotten. of: the lineage of that state."""
        self.note("server", f"goes back to step {state.progress.step}")
        self.counts["went back"] += 1
        if state.generation > before.generation:
            self._nobody_has(before, state)
        step = masters_due(state) if state.run_state in PLAYING else state.progress.step - 1
        self.replicas.went_back(lineage, step, of=of)

    def _nobody_has(self, before: CoordinatorState, state: CoordinatorState) -> None:
        """The run goes back: no honest member of the epoch that returned in time may hold what it leaves behind.

        That is: the masters after the last step, in memory or on a disk, and on a disk those after any step that members
        signed. A member that read them from a store does not know which step they belong to, where no quorum signed them.
        Steps of which no result was accepted left the masters as they were: nothing is lost with them. Where nobody signed the
        last step, liars offered another model of it, and no more honest members hold it than there may be liars, nobody can
        tell who is right: then only the signed steps count.
        """
        step, target = before.progress.step - 1, state.progress.step - 1
        signed = [*attested_digests(before), *(end.step for end in before.ends)]
        present = [node for node in self._honest() if self._came_in_time(node, state)]
        holders = [node for node in present if self._holds_more(node, step, than=target)]
        few = len(holders) <= tolerated(len(before.epoch.clients))
        contested = few and step not in signed and (before.generation, step) in self.false_offers
        if contested and holders:
            self.counts["contested models given up"] += 1
        elif any(node.holds_model and self.replicas.has_more(node.replica.snapshot(), step, than=target) for node in present):
            sentence = f"the run goes back from step {step}, whose masters {holders[0].name} holds"
            raise Broken("nothing-is-lost-that-a-member-holds", sentence)

        for node in present:
            for kept in node.disk.reach:
                known = kept.step in signed or (kept.step >= step and not contested)
                if known and self.replicas.has_more(kept.masters, kept.step, than=target):
                    sentence = f"the run goes back to step {target}, {node.name} has step {kept.step} on its disk"
                    raise Broken("nothing-is-lost-that-a-disk-holds", sentence)

    def _came_in_time(self, node: Node, state: CoordinatorState) -> bool:
        """Whether a healthy member of the epoch has been there long enough for others to get what it holds."""
        slot = state.slot_of(node.identity)
        awake = node.running and not node.paused and not node.spoiled and self.clock.now - node.booted_at > RECOVERY
        return awake and slot is not None and slot in state.healthy_slots

    def _holds_more(self, node: Node, step: int, *, than: int) -> bool:
        """Whether a member has the masters after `step`, in memory or on disk, with more in them than those after `than`."""
        held = [kept.masters for kept in node.disk.reach if kept.step >= step]
        held += [node.replica.snapshot()] if node.holds_model else []
        return any(self.replicas.has_more(masters, step, than=than) for masters in held)

    def applied(self, node: Node, work: ev.Apply, held: Mapping[bytes, Payload], *, lineage: int, before: object) -> None:
        """A member applied a round's results. held: its payloads by hash; before: its masters without them."""
        place = (work.height, work.step)

        def payloads() -> tuple[Payload, ...]:
            return self.announced.meant(work.payload_hashes, work.commitments, held)

        masters = node.replica.snapshot()
        self.replicas.made(before, payloads, masters)
        if not node.liar and not node.spoiled:
            self.replicas.applied(node.name, (lineage, *place), payloads=payloads(), before=before, masters=masters)

    def held(self, masters: object, *, asker: Node, step: int) -> bool:
        """Whether any running honest member holds these masters.

        asker: the member that will replace its own. It does not count once the coordinator was restored from an older state: it
        may be the only one that returned in time to see an epoch's last round decided again. Nor does who has just come back
        where liars offer another model of this step: nobody waits for it (protocol section 5, "Not yet covered").
        """
        holders = [node for node in self.nodes if node.running and not node.liar and node.replica.snapshot() == masters]
        if (self.server.state.generation, step) in self.false_offers:
            holders = [node for node in holders if self.clock.now - node.booted_at > RECOVERY]
        return bool(holders) and (holders != [asker] or not self.counts["older-state"])


def run_script(script: Script, *, timeline: list[tuple[float, str, str]] | None = None) -> RunResult:
    """Play a script to its end."""
    return World(script, timeline=timeline).run()


def _bound(script: Script) -> float:
    """Virtual seconds between two steps that the configuration explains, plus timeouts."""
    shape = script.shape
    rounds = 4 * (shape.max_round_train_time + shape.round_witness_time)
    return rounds + 2 * (shape.warmup_time + shape.cooldown_time + shape.extra_time) + PATIENCE


def _config(script: Script) -> CoordinatorConfig:
    shape = script.shape
    return CoordinatorConfig(
        warmup_time=shape.warmup_time,
        cooldown_time=shape.cooldown_time,
        max_round_train_time=shape.max_round_train_time,
        round_witness_time=shape.round_witness_time,
        epoch_time=shape.epoch_time,
        global_batch_size_warmup_tokens=shape.batch_warmup_tokens,
        total_steps=script.rounds,
        init_min_clients=shape.init_min_clients,
        min_clients=shape.min_clients,
        witness_nodes=shape.witness_nodes,
        global_batch_size_start=shape.batch_start,
        global_batch_size_end=shape.batch_end,
        verification_percent=0,
        waiting_for_members_extra_time=shape.extra_time,
        rounds_per_epoch=shape.rounds_per_epoch,
        restart_from_checkpoint=shape.restart_from_checkpoint,
    )


_RATES = SetFutureEpochRates(earning_total_shared=1000, slashing_per_client=7)

_MODEL = ModelConfig(
    LLM=LLMConfig(
        max_seq_len=16,
        cold_start_warmup_steps=0,
        architecture="HfLlama",
        checkpoint=Choice("Hub", {"repo_id": "model"}),
        data_type="Pretraining",
        data_location=Choice("Dummy"),
        lr_schedule=Choice("Constant", {"base_lr": 0.01, "warmup_init_lr": 0.0, "warmup_steps": 0}),
        optimizer=Choice("AdamW", {"betas": [0.9, 0.95], "weight_decay": 0.1, "eps": 1e-8}),
    )
)
