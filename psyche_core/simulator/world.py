"""One simulated run of a script: sets everything up and advances time until the run is over or an invariant breaks.

Random streams are derived from the seed by name (the network, the server, each member, each liar), so that removing a fault
from a script leaves the other streams unchanged.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Mapping

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.machine.epoch import PLAYING, masters_due
from psyche_core.coordinator import new_state
from psyche_core.coordinator.round.witness import tolerated
from psyche_core.coordinator.state import MAX_REPEATED_WARMUPS, CoordinatorState
from psyche_core.simulator.clock import Clock, StepTimes
from psyche_core.simulator.injection.faults import Faults
from psyche_core.simulator.injection.lies import Lies
from psyche_core.simulator.invariants.cooldown_watch import CooldownWatch
from psyche_core.simulator.invariants.coordinator_checker import CoordinatorChecker, attested_digests
from psyche_core.simulator.invariants.replica_checker import ProgressChecker, ReplicaChecker
from psyche_core.simulator.members.keys import INSTANCE, RUN_ID, identity_of, member_with
from psyche_core.simulator.members.node import Node
from psyche_core.simulator.members.owner import Owner
from psyche_core.simulator.members.process import Process
from psyche_core.simulator.members.worker import Worker
from psyche_core.simulator.network import Network
from psyche_core.simulator.replicas.announcement_log import AnnouncementLog
from psyche_core.simulator.replicas.replica import HashReplica, Payload, Replica
from psyche_core.simulator.run_result import InvariantViolation, NoGuarantee, RunResult, SimFailure
from psyche_core.simulator.run_settings import MODEL, RATES, coordinator_config, longest_stall
from psyche_core.simulator.script import NETWORK_FAULTS, NO_EXCUSE, SERVER, Script
from psyche_core.simulator.server import START_TIME, Server
from psyche_core.simulator.stragglers import is_straggler

CHECK_EVERY = 2.0
"""Virtual seconds between two checks of the run's progress."""


STOP_TIMEOUT = 60.0
"""Virtual seconds after the run's end within which every honest member must have stopped."""

RECOVERY = 15.0
"""Virtual seconds that a member may need after its start until others can get what it holds."""

OFFER_SECONDS = 3.0
"""Virtual seconds that a member's offer of its model may need to reach others after it was cut off."""

KEPT_SECONDS = 300.0
"""Virtual seconds for which the server's older states are kept, if they are needed."""

EJECTED_SECONDS = 10.0
"""Virtual seconds until the user of a member that was ejected for strikes starts it again."""

RETURN_SECONDS = 15.0
"""Virtual seconds that a member may need to return after a fault; a run that ends meanwhile may end without it."""


class World:
    """A run of a script. timeline: if given, gets an entry (virtual seconds, who, what) for everything that happens.

    member: the class of its members; tests use one that they can interfere with. all_lost_in: the epoch in which all honest
    members lost memory and disk at once, None without one. false_offers: generation and step of models that liars offered.
    verified: whether shares are checked. faked: step and member of shares that cheats have not trained.
    wrong_signs: hashes of parts with signs that are not their trainer's.
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
        self.verified: bool = script.shape.verification_percent > 0
        self.wrong_signs: set[bytes] = set()
        self.faked: set[tuple[int, int]] = set()
        self.index_of: dict[bytes, int] = {identity_of(index).p2p: index for index in range(script.clients)}
        liars = script.liars
        honest = frozenset(identity_of(index).signer for index in range(script.clients) if index not in liars)
        self.announced: AnnouncementLog = AnnouncementLog()
        kinds = {fault.kind for fault in script.faults}
        self.coordinator: CoordinatorChecker = CoordinatorChecker(
            honest=honest, announced=self._has_announced, is_straggler=self._is_straggler, no_excuse=kinds <= set(NO_EXCUSE)
        )
        self.replicas: ReplicaChecker = ReplicaChecker(
            lambda: self.coordinator.sample_tracker, initial=self.new_replica().snapshot(), liars=liars
        )
        self.coordinator.trained_again = self.replicas.trained_again
        self.coordinator.counts = self.counts
        self.progress: ProgressChecker = ProgressChecker(bound=longest_stall(script), excused_until=script.excused_until)
        self.network: Network = Network(self.clock, self.stream("network"), seconds=script.shape.link_seconds, counts=self.counts)
        state = new_state(RUN_ID, coordinator_config(script), MODEL, now=START_TIME, instance=INSTANCE)
        self.server: Server = Server(
            state,
            self.clock,
            self.network,
            rng=self.stream("server"),
            watch=self.coordinator,
            counts=self.counts,
            sealed=script.sealed,
            withdraw_after=script.shape.withdraw_after,
            remember=KEPT_SECONDS if kinds & {"older-state", "slow-rpc"} else 0.0,
            with_tracker="older-state" in kinds,
        )
        self.server.went_back = self._went_back
        self.times: StepTimes = StepTimes()
        self.server.changed = self._changed
        self.owner: Owner = Owner(self, excused_until=script.excused_until)
        self.lies: Lies = Lies(self.clock, self.server, network=self.network, members=script.clients, counts=self.counts)
        self.nodes: list[Node] = [self._node(index, liar=index in liars) for index in range(script.clients)]
        self._finished_at: float | None = None
        self._cooldowns = CooldownWatch(self._somebody_reaches_it, self._evidence_unheard)
        self.all_lost_in: int | None = None
        self.false_offers: set[tuple[int, int]] = set()
        self.server.apply(RATES)
        faults = Faults(self)
        for fault in script.faults:
            self.clock.after(fault.start, faults.begin, fault)

    def _is_straggler(self, signer: bytes) -> bool:
        """Whether the member with this signer trains so slowly that it is no longer waited for (F16)."""
        own = next(node for node in self.nodes if identity_of(node.index).signer == signer)
        return is_straggler(own, [node for node in self.nodes if node is not own])

    def stream(self, name: str) -> random.Random:
        """The random stream with this name."""
        return random.Random(f"{self.script.seed}/{name}")

    def _node(self, index: int, *, liar: bool) -> Node:
        node = self.member(self, index, rng=self.stream(f"node {index}"), liar=liar)
        node.lying_rng = self.stream(f"liar {index}")
        self.network.add(node)
        late = [fault for fault in self.script.faults if fault.kind == "late" and index in fault.nodes]
        for fault in late:
            self.counts["late"] += 1
            self.clock.after(fault.end, self._boot_late, node)
        if not late:
            node.boot()
        return node

    def _boot_ejected(self, node: Node) -> None:
        """Its user starts it again, until an epoch begins in which it is a member."""
        if not node.running and not self.server.finished:
            node.boot(disk=True)

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
        failure, no_guarantee = None, ""
        try:
            self._play()
        except NoGuarantee as ended:
            no_guarantee = str(ended)
        except InvariantViolation as broken:
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
            no_guarantee=no_guarantee,
        )

    def _play(self) -> None:
        due = 0.0
        clock = self.clock
        while True:
            clock.step()
            if clock.now >= due:
                due = clock.now + CHECK_EVERY
                self._check_progress()
                if self._is_over():
                    break

        self._check_end()

    def _check_end(self) -> None:
        """Check what must hold at the end."""
        self.replicas.over()
        final = self.server.state.progress.step - 1
        for node in self._honest():
            if node.stop is not None and not node.left and not self._excused(node):
                self.replicas.finished(node.name, step=final, masters=node.replica.snapshot())

    def _check_progress(self) -> None:
        if self.server.finished:
            self._finished_at = self.clock.now if self._finished_at is None else self._finished_at
            overdue = self.clock.now - max(self._finished_at, self.script.excused_until) > STOP_TIMEOUT
            waiting = [node.name for node in self._honest() if node.running]
            if overdue and waiting:
                raise InvariantViolation(
                    "honest-members-end", f"{', '.join(waiting)} did not stop within {STOP_TIMEOUT:.0f} s of the end of the run"
                )
        else:
            self.progress.check(self.server.state, self.clock.now)

    def _is_over(self) -> bool:
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
            fault.end > ended - RETURN_SECONDS
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
        if not stop.success and node.identity.signer in self.coordinator.ejected_for_strikes:
            self.clock.after(EJECTED_SECONDS, self._boot_ejected, node)  # measured, not forbidden: see CHEATS
            return

        if not stop.success and self._excused(node):
            self.counts["excused at the end"] += 1
        elif not stop.success:
            raise InvariantViolation("honest-members-succeed", f"{node.name} gave up: {stop.reason}")
        elif not node.left and not self.server.finished:
            raise InvariantViolation("honest-members-stay", f"{node.name} ended before the run did: {stop.reason}")

    def raised(self, node: Process, event: ev.Event, error: Exception) -> None:
        """A machine raised an exception: always a bug, also with a liar."""
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rpartition('/')[2]}:{where.lineno}"
        raise InvariantViolation(
            "nothing-raises", f"the machine of {node.name} raised {error!r} at {place} on {type(event).__name__}"
        ) from error

    # ------------------------------------------------------------------------------------ what the others ask

    def node_of(self, state: CoordinatorState, slot: int) -> Node | None:
        """The member with this slot of the state's epoch; None if it is no simulated one."""
        index = self.index_of.get(state.epoch.clients[slot].id.p2p)
        return None if index is None else self.nodes[index]

    def _has_announced(self, signer: bytes, place: tuple[int, int]) -> bool:
        return member_with(signer, self.script.clients) in self.announced.announcers(place)

    def _changed(self, state: CoordinatorState, now: float) -> None:
        """The coordinator's phase or progress has changed. now: virtual seconds."""
        self._cooldowns.changed(state)
        self.times.record(state, now)
        self.owner.state_changed(state)

    def _somebody_reaches_it(self) -> bool:
        """Whether an honest member that runs can tell the coordinator something now."""
        now, honest = self.clock.now, self._honest()
        return any(node.running and not self.network.was_cut(node.index, SERVER, since=now) for node in honest)

    def _evidence_unheard(self, state: CoordinatorState) -> None:
        self.counts["cooldowns without anybody"] += 1
        self.coordinator.sample_tracker.evidence_unheard(state)

    def _went_back(self, lineage: int, before: CoordinatorState, state: CoordinatorState, *, of: int) -> None:
        """The coordinator continues from an older state or step; later decisions are forgotten. of: the lineage of that state."""
        self.note("server", f"goes back to step {state.progress.step}")
        self.counts["went back"] += 1
        if state.generation > before.generation:
            self._check_nothing_lost(before, state)
        step = masters_due(state) if state.run_state in PLAYING else state.progress.step - 1
        self.replicas.went_back(lineage, step, of=of)

    def _check_nothing_lost(self, before: CoordinatorState, state: CoordinatorState) -> None:
        """The run goes back: no honest member that returned in time may hold what it leaves behind.

        That is: the masters after the last step, in memory or on a disk, and on a disk those after any step that members
        signed. A member that read them from a store does not know which step they belong to, where no quorum signed them.
        Steps of which no result was accepted left the masters as they were: nothing is lost with them. Where nobody signed the
        last step, liars offered another model of it, and no more honest members hold it than there may be liars, nobody can
        tell who is right: then only the signed steps count.
        """
        step, target = before.progress.step - 1, state.progress.step - 1
        signed = [*attested_digests(before), *(end.step for end in before.ends)]
        present = [node for node in self._honest() if self._came_in_time(node, before, state)]
        holders = [node for node in present if self._holds_more(node, step, than=target)]
        few = len(holders) <= tolerated(len(before.epoch.clients))
        contested = few and step not in signed and (before.generation, step) in self.false_offers
        if contested and holders:
            self.counts["contested models given up"] += 1
        elif any(node.holds_model and self.replicas.has_more(node.replica.snapshot(), step, than=target) for node in present):
            sentence = f"the run goes back from step {step}, whose masters {holders[0].name} holds"
            raise InvariantViolation("nothing-is-lost-that-a-member-holds", sentence)

        for node in present:
            for kept in node.disk.written:
                known = kept.step in signed or (kept.step >= step and not contested)
                if known and self.replicas.has_more(kept.masters, kept.step, than=target, stored=state.from_checkpoint):
                    sentence = f"the run goes back to step {target}, {node.name} has step {kept.step} on its disk"
                    raise InvariantViolation("nothing-is-lost-that-a-disk-holds", sentence)

    def _came_in_time(self, node: Node, before: CoordinatorState, state: CoordinatorState) -> bool:
        """Whether the run had to wait for what a member holds: it takes part, and others had the time to get it.

        Or it joined while the warmup went on, which could begin again for it. Nobody can wait for a member that reaches neither
        the server nor those who lack the model: it may as well be dead. before: the state that the run leaves.
        """
        slot = state.slot_of(node.identity)
        if not node.running or node.paused or node.corrupted or self._out_of_reach(node, before):
            return False
        if slot is not None and slot in state.healthy_slots:
            return self.clock.now - node.booted_at > RECOVERY
        return node.identity in before.pending and before.epoch.repeats < MAX_REPEATED_WARMUPS

    def _out_of_reach(self, node: Node, before: CoordinatorState) -> bool:
        """Whether a member was lately cut off from the server and from all honest members that said that they lack the model."""
        lacking = {before.epoch.clients[slot].id for slot in before.epoch.lacking}
        asking = [other.index for other in self._honest() if other.identity in lacking]
        since = self.clock.now - RECOVERY
        return all(self.network.was_cut(node.index, other, since=since) for other in (SERVER, *asking))

    def _holds_more(self, node: Node, step: int, *, than: int) -> bool:
        """Whether a member has the masters after `step`, in memory or on disk, with more in them than those after `than`."""
        held = [kept.masters for kept in node.disk.restorable if kept.step >= step]
        held += [node.replica.snapshot()] if node.holds_model else []
        return any(self.replicas.has_more(masters, step, than=than) for masters in held)

    def applied(self, node: Worker, work: act.Apply, held: Mapping[bytes, Payload], *, lineage: int, before: object) -> None:
        """A member applied a round's results. held: its payloads by hash; before: its masters without them."""
        place = (work.height, work.step)

        def payloads() -> tuple[Payload, ...]:
            return self.announced.payloads_of(work.payload_hashes, work.commitments, held)

        masters = node.replica.snapshot()
        if not node.corrupted:  # nobody can say what is in masters of which a bit flipped
            self.replicas.record_masters(before, payloads, masters)
        if not node.liar and not node.corrupted:
            self.replicas.applied(node.name, (lineage, *place), payloads=payloads(), before=before, masters=masters)

    def _was_heard(self, node: Node, requester: Worker) -> bool:
        """Whether what a member says lately reached another one, directly or through other honest ones."""
        since = self.clock.now - OFFER_SECONDS
        silent = {other.index for other in self._honest() if other.running} - {node.index}
        reached = [node.index]
        for source in reached:  # grows while it is read
            heard = {target for target in silent if not self.network.was_cut(source, target, since=since)}
            reached += sorted(heard)
            silent -= heard
        return requester.index in reached

    def held(self, masters: object, *, requester: Worker, step: int) -> bool:
        """Whether any running honest member holds these masters, and knows that they are those after `step`.

        requester: the member that will replace its own. It does not count once the coordinator was restored from an older state:
        it may be the only one that returned in time to see an epoch's last round decided again. Nor does who has just come back
        where liars offer another model of this step, nor who cannot be heard for half of a warmup: nobody waits for it
        longer (protocol section 5, "Not yet covered").
        """
        state = self.server.state
        holders = [node for node in self._honest() if node.holds_step(step) and node.replica.snapshot() == masters]
        if (state.generation, step) in self.false_offers:
            holders = [node for node in holders if self.clock.now - node.booted_at > RECOVERY]
            if self.clock.now - (state.since - START_TIME) >= state.config.warmup_time / 2:
                holders = [node for node in holders if self._was_heard(node, requester)]
        return bool(holders) and (holders != [requester] or not self.counts["older-state"])


def run_script(script: Script, *, timeline: list[tuple[float, str, str]] | None = None) -> RunResult:
    """Play a script to its end."""
    return World(script, timeline=timeline).run()
