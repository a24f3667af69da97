"""The whole behaviour of a client as a pure state machine: events in, actions out; no I/O, no clock, no randomness, no torch.

`handle(event, now)` returns the actions to take, in order. `now` is any monotonic clock in seconds and only bounds waiting. The
same object runs in a real client (psyche_core.client.runtime) and in the simulator.

Decided here: one piece of trainer work at a time, chosen afresh after each event (`agenda`); a client that cannot follow, or
whose replica is not the others', stops training, gets the masters from them and comes back in the same epoch (protocol section 5)
before it ever gives up. Membership is kept alive by joining again, once per process and whenever it was lost. Refuses to
interpret payloads or to know time-outs of the network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from psyche_core.client import agenda, report, speech
from psyche_core.client import events as ev
from psyche_core.client.agreement import unlike_witnesses
from psyche_core.client.epoch import PLAYING, EpochNotes, epoch_key, masters_due
from psyche_core.client.inbox import EarlyMessages
from psyche_core.client.patience import Patience
from psyche_core.client.results import ResultDesk, Verify
from psyche_core.client.rounds import RoundRecord
from psyche_core.coordinator.commands import WarmupWitness, Withdraw, Witness
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import ClientState, NodeIdentity, RunState
from psyche_core.wire.messages import Finished, Message, ModelDigest, ModelOffer, ModelWanted, Result

KEPT_ROUNDS = 4
"""Rounds whose messages and payloads are kept for laggards (F11)."""

__all__ = ["ClientMachine", "Patience"]


class ClientMachine:
    """See the module.

    sign: signs a commitment (32 bytes) with our p2p key (64 bytes). verify: checks such a signature; None for the real check.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        run_id: str,
        *,
        sign: Callable[[bytes], bytes],
        patience: Patience | None = None,
        verify: Verify | None = None,
    ) -> None:
        self.identity = identity
        self.run_id = run_id
        self.state: CoordinatorState | None = None
        self.stopped: ev.Stop | None = None
        self._sign = sign
        self._patience = patience or Patience()
        self._actions: list[ev.Action] = []
        self._now = 0.0
        self._notes: EpochNotes | None = None
        self._early = EarlyMessages()
        self._members: tuple[NodeIdentity, ...] = ()
        self._peers: frozenset[bytes] = frozenset()
        self._healthy: frozenset[int] = frozenset()
        self._introduced = False
        self._join_asked: float | None = None
        self._leaving: float | None = None
        self._model_ready = False
        self._model_digest = bytes(32)
        self._masters_at: int | None = None
        self._results = ResultDesk(identity, run_id, verify=verify)
        self._work: ev.Work | None = None
        self._figures = speech.Figures()

    def handle(self, event: ev.Event, now: float) -> list[ev.Action]:
        """Take one event in; returns the actions to carry out, in order. Nothing is returned after a Stop."""
        if self.stopped is not None:
            return []

        self._actions = []
        self._now = now
        self._take(event)
        if self.state is not None:
            self._advance(self.state)
        return self._actions

    def size_report(self) -> dict[str, int]:
        """How much is remembered, by kind: bounded whatever peers send."""
        notes = self._notes
        records = notes.records.values() if notes is not None else ()
        return {
            "records": len(records),
            "candidates": sum(len(known) for record in records for known in record.candidates.values()),
            "payloads": len(notes.inbox) if notes is not None else 0,
            "early_messages": len(self._early),
            "offers": sum(map(len, notes.repair.offers.values())) if notes is not None else 0,
            "wanted_snapshots": len(notes.generosity.asked) if notes is not None else 0,
        }

    # -------------------------------------------------------------------------------------------- events

    def _take(self, event: ev.Event) -> None:
        match event:
            case ev.MessageSeen():
                self._on_message(event.origin, event.message)
            case ev.StateSeen():
                self._on_state(event.state)
            case ev.PayloadChecked():
                self._on_payload(event)
            case ev.TimePassed():
                if self._notes is not None:
                    self._do(*self._results.fetch_missing(self._notes))
            case ev.CommandAnswered():
                self._on_answer(event)
            case ev.PayloadMissing():
                if self._notes is not None:
                    self._notes.inbox.fetch_failed(event.payload_hash)
            case ev.PeersSeen():
                self._peers = event.peers
            case ev.BandwidthSeen():
                self._figures = replace(self._figures, bytes_per_second=event.bytes_per_second)
            case ev.LeaveAsked():
                self._on_leave_asked()
            case _:
                self._work = None
                self._on_work_done(event)

    def _on_work_done(self, event: ev.Event) -> None:
        match event:
            case ev.ModelReady():
                self._on_model_ready(event)
            case ev.Trained():
                self._on_trained(event)
            case ev.TrainFailed():
                if self._notes is not None and event.height in self._notes.records:
                    self._notes.records[event.height].own_done = True
                self._tell(report.Problem("error", event.reason))
            case ev.Applied():
                self._on_applied(event)
            case ev.Digested():
                notes = self._notes
                record = notes.records.get(event.height) if notes is not None else None
                if notes is not None and record is not None and record.digest_asked:
                    record.digest = event.digest
                    notes.judge = True
            case ev.EpochClosed():
                self._on_epoch_closed(event)
            case ev.SnapshotTaken():
                self._on_snapshot(event)
            case ev.ModelFetched():
                self._on_model_fetched(event)
            case ev.ModelFetchFailed():
                self._on_model_fetch_failed(event)

    def _do(self, *actions: ev.Action) -> None:
        self._actions.extend(actions)

    def _tell(self, event: report.Event) -> None:
        self._actions.append(ev.Tell(event))

    def _stop(self, reason: str, *, success: bool) -> None:
        self.stopped = ev.Stop(reason, success)
        self._do(self.stopped)

    def _give_up(self, reason: str) -> None:
        """Withdraw, then stop."""
        if self.state is not None and self._takes_part(self.state):
            self._do(ev.Send(Withdraw(self.identity)))
        self._stop(reason, success=False)

    def _takes_part(self, state: CoordinatorState) -> bool:
        member = self._notes is not None and self._notes.healthy(state)
        return member or any(pending.signer == self.identity.signer for pending in state.pending)

    def _on_leave_asked(self) -> None:
        """Withdraw at once, so that nothing more is expected of us; what we gave is served until others have it."""
        if self._leaving is None:
            self._leaving = self._now
            if self.state is not None and self._takes_part(self.state):
                self._do(ev.Send(Withdraw(self.identity)))

    # -------------------------------------------------------------------------------------------- coordinator states

    def _on_state(self, state: CoordinatorState) -> None:
        previous, self.state = self.state, state
        self._healthy = frozenset(state.healthy_slots)
        if previous is None or previous.epoch.clients is not state.epoch.clients:
            members = tuple(client.id for client in state.epoch.clients if client.state is not ClientState.Ejected)
            if members != self._members:
                self._members = members
                self._do(ev.SetPeers(members))
        self._tell_phase(previous, state)
        self._follow(state)

    def _tell_phase(self, previous: CoordinatorState | None, state: CoordinatorState) -> None:
        def place(seen: CoordinatorState) -> tuple[RunState, int | None]:
            current = seen.current_round if seen.run_state in PLAYING else None
            return seen.run_state, current.height if current is not None else None

        if previous is None or place(previous) != place(state):
            phase, height = place(state)
            clients = len(state.healthy_slots)
            self._tell(report.PhaseChanged(phase.name, state.progress.epoch, state.progress.step, clients, height))

    def _follow(self, state: CoordinatorState) -> None:
        """Enter a new epoch, see its rounds, keep our membership."""
        notes = self._notes
        if (notes is None or not notes.describes(state)) and state.run_state in (RunState.Warmup, *PLAYING):
            self._open_epoch(state)
        notes = self._notes
        if notes is not None and notes.slot is not None and notes.describes(state):
            notes.judge = True
            if state.epoch.clients[notes.slot].state is ClientState.Ejected:
                self._stop(
                    "the coordinator ejected this client: it was proven to have signed two results for one share", success=False
                )
                return

            self._see_rounds(state, notes)
        self._keep_membership(state)

    def _keep_membership(self, state: CoordinatorState) -> None:
        """Join once per process, which also publishes our address, and again whenever we are no longer expected."""
        if state.run_state is RunState.Finished or self._leaving is not None:
            return

        if self._introduced and any(member.signer == self.identity.signer for member in state.pending):
            self._join_asked = None
            return

        if self._join_asked is None or self._now - self._join_asked > self._patience.answer:
            self._introduced = True
            self._join_asked = self._now
            self._do(ev.Join())

    def _open_epoch(self, state: CoordinatorState) -> None:
        old = self._notes
        if old is not None and old.slot is not None and not old.done and old.decided and self._model_ready:
            blocked = agenda.obstacle(state, old, masters_at=self._masters_at, now=self._now, patience=self._patience)
            if blocked is None:
                return  # the last epoch is finished first

        clients = tuple(client.id for client in state.epoch.clients)
        playing = state.current_round.height if state.current_round is not None else -1
        slot = state.slot_of(self.identity)
        notes = self._notes = EpochNotes(epoch_key(state), state.progress.epoch, clients, slot, self._now, opened_at=playing)
        notes.digests.ours = self._model_digest
        for origin, message in self._early.take(notes.number, None):
            self._on_message(origin, message)

    def _see_rounds(self, state: CoordinatorState, notes: EpochNotes) -> None:
        current = state.current_round
        if current is None:
            return

        if current.height > notes.newest:
            for playing in state.epoch.rounds:
                if playing.height > notes.newest:
                    self._open_round(RoundRecord.open(state, playing), notes)

        over = state.run_state not in PLAYING
        for record in notes.records.values():
            if record.settled_by is None and not record.lost and (over or record.height + 2 <= current.height):
                if record.height < current.height and state.round_at(record.height + 1) is None:
                    record.lost = True
                else:
                    record.settle(state)

    def _open_round(self, record: RoundRecord, notes: EpochNotes) -> None:
        height = record.height
        notes.records[height] = record
        notes.newest = height
        for old in [h for h in notes.records if h < height - KEPT_ROUNDS and notes.records[h].applied]:
            del notes.records[old]
        if height >= KEPT_ROUNDS:
            self._do(ev.Expire(notes.tag(height - KEPT_ROUNDS)))
        share = record.shares.get(notes.slot) if notes.slot is not None else None
        if share and self._model_ready and height > notes.opened_at:
            self._do(ev.Prefetch(share))
        for origin, message in self._early.take(notes.number, height):
            self._on_message(origin, message)

    # -------------------------------------------------------------------------------------------- peers' messages

    def _on_message(self, origin: bytes, message: Message) -> None:
        notes = self._notes
        height = message.height if isinstance(message, Result | Finished) else None
        known = notes is not None and message.epoch == notes.number
        if notes is None or not known or (height is not None and height not in notes.records):
            # A peer may hear of a round or an epoch before we do; transports deliver a message once, so it is kept.
            if notes is None or message.epoch > notes.number or (known and height is not None and height > notes.newest):
                self._early.hold(origin, message)
            return

        slot = notes.slots.get(origin)
        if slot is None or notes.slot is None:
            return

        match message:
            case Finished():
                notes.records[message.height].finished.add(slot)
            case Result():
                self._do(*self._results.announced(notes, slot=slot, result=message))
            case ModelDigest():
                notes.digests.add(slot, message)
                notes.judge = True
            case ModelWanted():
                notes.generosity.want(slot, message.step)
            case ModelOffer():
                notes.repair.offered(slot, message)

    def _on_payload(self, event: ev.PayloadChecked) -> None:
        if self._notes is not None:
            self._notes.inbox.checked(event.payload_hash, valid=event.valid)
            for record in self._notes.records.values():
                record.payload_arrived(event.payload_hash, self._notes.inbox.valid)

    # -------------------------------------------------------------------------------------------- our own work

    def _on_model_ready(self, event: ev.ModelReady) -> None:
        self._model_ready = True
        self._model_digest = event.digest
        self._masters_at = event.step
        self._results.max_payload_bytes = event.max_payload_bytes
        notes, state = self._notes, self.state
        if notes is None or state is None:
            return

        notes.digests.ours = event.digest
        if event.step is None and state.epoch.start_step == 1:
            self._masters_at = 0  # the run begins with the model its checkpoint names
        self._do(*self._results.fetch_missing(notes))

    def _on_trained(self, event: ev.Trained) -> None:
        speed = event.tokens / event.seconds if event.seconds > 0 else 0.0
        self._figures = replace(self._figures, loss=event.loss, tokens_per_second=speed)
        notes = self._notes
        record = notes.records.get(event.height) if notes is not None else None
        if notes is None or record is None or notes.slot is None:
            return

        record.own_done = True
        step, share = record.round.step, record.shares[notes.slot]
        self._tell(report.StepTrained(notes.number, step, event.loss, event.tokens, event.seconds, event.payload_bytes))
        commitment = self._results.commitment(record, share=share, trainer=self.identity.signer, payload_hash=event.payload_hash)
        signature = self._sign(commitment)
        result = Result(notes.number, event.height, step, share, event.payload_hash, event.payload_bytes, commitment, signature)
        record.add(notes.slot, result)
        self._on_payload(ev.PayloadChecked(event.payload_hash, valid=True))
        self._do(ev.Broadcast(result, notes.tag(event.height)))

    def _on_applied(self, event: ev.Applied) -> None:
        record = self._notes.records.get(event.height) if self._notes is not None else None
        if record is not None:
            record.applied = True
            if not record.cut:
                self._masters_at = record.round.step
            accepted, trained = len(record.accepted), len(record.shares)
            self._tell(report.StepApplied(record.epoch, record.round.step, accepted, trained, event.seconds))

    def _on_epoch_closed(self, event: ev.EpochClosed) -> None:
        notes, state = self._notes, self.state
        if notes is None or state is None:
            return

        notes.closed = notes.judge = True
        notes.closed_at = self._now
        self._model_digest = notes.digests.ours = event.digest
        notes.digests.note_own(notes.slot, ended=True)
        self._tell(report.EpochDigest(notes.number, notes.last_step(state), event.digest.hex()))
        self._do(ev.Broadcast(ModelDigest(notes.number, True, event.digest), notes.tag(max(notes.newest, 0))))
        self._follow(state)

    def _on_answer(self, event: ev.CommandAnswered) -> None:
        command, notes = event.command, self._notes
        if notes is None or self.state is None:
            return

        if isinstance(command, Witness) and event.code is None:
            record = notes.records.get(command.statement.height)
            if record is not None:
                self._tell(report.WitnessSent(record.epoch, record.height, record.all_finished(self._healthy)))
        elif isinstance(command, WarmupWitness) and event.code is not None:
            if event.code == "RejoinsExhausted":
                notes.rejoin_refused = True
            elif event.code not in ("InvalidRunState", "DuplicateWitness"):
                notes.ready_sent = False

    # -------------------------------------------------------------------------------------------- repair

    def _on_snapshot(self, event: ev.SnapshotTaken) -> None:
        if self._notes is not None:
            offer = ModelOffer(self._notes.number, event.step, event.manifest_hash, event.manifest_bytes)
            self._do(ev.Broadcast(offer, self._notes.tag(max(self._notes.newest, 0) + KEPT_ROUNDS)))

    def _on_model_fetched(self, event: ev.ModelFetched) -> None:
        notes = self._notes
        self._masters_at = event.step
        self._model_digest = event.digest
        if notes is None:
            return

        notes.digests.ours = event.digest
        notes.digests.forget_own()
        notes.masters_replaced(event.step)
        notes.ready_sent = notes.closed = False
        notes.repair.over()
        self._tell(report.Resynced(notes.number, event.step))

    def _on_model_fetch_failed(self, event: ev.ModelFetchFailed) -> None:
        notes = self._notes
        self._tell(report.Problem("warning", event.reason))
        if notes is not None and notes.repair.taken is not None:
            notes.repair.refused.add(notes.repair.taken)

    def _lacks(self, notes: EpochNotes, reason: str, *, astray: bool = False) -> None:
        """Our masters cannot be used as they are."""
        if notes.repair.begin(reason, astray=astray):
            self._tell(report.Problem("warning", f"{reason}; asking the other members for their model"))
            if astray:
                notes.digests.forget_own()

    def _judge_digests(self, notes: EpochNotes) -> None:
        """Compare our replica with the others': full digests at an epoch's ends, sampled ones of each settled round."""
        for peer, theirs in notes.digests.disagreements():
            name = notes.clients[peer].short
            self._tell(report.ReplicasDiffer(notes.number, notes.digests.ours.hex(), theirs.hex(), name))
        if notes.slot is not None and notes.digests.outvoted(self._healthy, own=notes.slot):
            self._lacks(notes, "this client's model differs from that of most members", astray=True)
            return

        step = unlike_witnesses(notes.records.values())
        if step is not None:
            self._lacks(notes, f"this client's model differs from the witnesses' at step {step}", astray=True)

    def _check_masters(self, state: CoordinatorState, notes: EpochNotes) -> None:
        """Find out whether our masters can be brought up to date from here; if not, say which masters we need."""
        repair = notes.repair
        if notes.judge and not repair.astray:
            notes.judge = False
            self._judge_digests(notes)
        if not repair.astray:
            reason = agenda.obstacle(state, notes, masters_at=self._masters_at, now=self._now, patience=self._patience)
            if reason is None:
                repair.over()
                return

            self._lacks(notes, reason)
        if repair.exhausted:
            self._give_up(f"{repair.reason}, and what the others offered did not help")
            return

        due = masters_due(state)
        if repair.asks(due, self._now):
            self._do(ev.Broadcast(ModelWanted(notes.number, due), notes.tag(max(notes.newest, 0))))
        waited = self._now - repair.since
        if not repair.offers and waited > self._patience.offers:
            self._without_offers(state, notes, waited=waited)

    def _without_offers(self, state: CoordinatorState, notes: EpochNotes, *, waited: float) -> None:
        """Nobody has what we need: at an epoch's start the run may begin again with its checkpoint, at its end nobody waits."""
        if state.run_state is RunState.Finished:
            self._stop("the run finished, and nobody was left who could give this client the final model", success=False)
        elif notes.repair.astray:
            if waited > self._patience.payload:
                self._give_up(f"{notes.repair.reason}, and no model has a majority")
        elif agenda.starts_from_checkpoint(state) and self._masters_at is None:
            self._masters_at = masters_due(state)
            notes.repair.over()
        elif agenda.starts_from_checkpoint(state) and self._work is None:
            self._model_ready, self._masters_at = False, None
            self._start(ev.Load(state, fresh=True))

    # -------------------------------------------------------------------------------------------- what to do next

    def _advance(self, state: CoordinatorState) -> None:
        notes = self._notes
        if notes is not None and not notes.describes(state) and state.run_state in (RunState.Warmup, *PLAYING):
            self._follow(state)  # something kept us in the last epoch
            notes = self._notes
        if notes is not None and notes.slot is not None and self._model_ready and notes.describes(state):
            self._check_masters(state, notes)
            self._speak(state, notes)
        if self.stopped is not None:
            return

        if self._leaving is not None:
            self._finish_leaving(state, self._leaving)
            return

        if self._work is None and notes is not None and notes.slot is not None:
            self._choose_work(state, notes)
        if state.run_state is RunState.Finished and self._work is None and self._nothing_left(notes):
            self._stop(f"the run finished after {state.progress.step - 1} steps", success=True)

    def _nothing_left(self, notes: EpochNotes | None) -> bool:
        """Whether the last epoch is behind us and the other members', as far as we wait for them."""
        if notes is None or notes.slot is None or not self._model_ready or not notes.records:
            return True

        others = self._healthy - {notes.slot}
        heard = others <= notes.digests.heard(ended=True)
        return notes.closed and (heard or self._now - notes.closed_at > self._patience.leaving)

    def _speak(self, state: CoordinatorState, notes: EpochNotes) -> None:
        """What is due to be said: readiness, coming back, Finished, statements, health."""
        sound = notes.repair.reason is None
        if self.stopped is not None:
            return

        if notes.slot in self._healthy and state.run_state in PLAYING:
            self._do(*speech.in_round(self.identity, state, notes, self._figures, healthy=self._healthy))
        elif not sound or self._leaving is not None or self._work is not None:
            pass
        elif notes.slot in self._healthy and state.run_state is RunState.Warmup:
            waited = self._now - notes.since > self._patience.peers
            self._do(*speech.in_warmup(self.identity, state, notes, peers=self._peers, waited_enough=waited))
            notes.judge = True
        elif notes.slot not in self._healthy and self._masters_at == masters_due(state):
            self._do(*speech.coming_back(self.identity, state, notes, now=self._now, patience=self._patience))

    def _finish_leaving(self, state: CoordinatorState, since: float) -> None:
        """Stop once our results are settled, or after a bounded time of serving them."""
        notes = self._notes
        unsettled = (
            notes is not None
            and notes.slot is not None
            and notes.describes(state)
            and any(record.own_done and record.settled_by is None for record in notes.records.values())
        )
        if not unsettled or state.run_state not in PLAYING or self._now - since > self._patience.leaving:
            self._stop("left the run as asked", success=True)

    def _choose_work(self, state: CoordinatorState, notes: EpochNotes) -> None:
        if not self._model_ready:
            if state.run_state in (RunState.Warmup, *PLAYING) and notes.describes(state):
                self._start(ev.Load(state))
            return

        found = agenda.next_work(
            state, notes, masters_at=self._masters_at, healthy=self._healthy, now=self._now, patience=self._patience
        )
        if isinstance(found, RoundRecord):
            self._apply(found, notes)
        elif found is not None:
            self._start(found)

    def _start(self, work: ev.Work) -> None:
        self._work = work
        self._do(work)

    def _apply(self, record: RoundRecord, notes: EpochNotes) -> None:
        """Apply a settled round once every consensus payload is here; ask for what is missing (F11)."""
        payloads: list[bytes] = []
        for slot in sorted(record.accepted):
            result = record.chosen(slot)
            if result is not None and result.payload_hash in notes.inbox.invalid:
                continue  # refused by everybody's parameter table alike

            if result is not None and result.payload_hash in notes.inbox.valid:
                payloads.append(result.payload_hash)
                continue

            record.waiting_since = self._now if record.waiting_since is None else record.waiting_since
            if result is not None:
                self._do(*self._results.fetch(notes, record, result, notes.clients[slot].p2p))
            return

        self._start(ev.Apply(record.height, record.round.step, tuple(payloads), notes.slot in record.accepted))
