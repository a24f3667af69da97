"""The whole behaviour of a client as a pure state machine: events in, actions out; no I/O, no clock, no randomness, no torch.

`handle(event, now)` returns the actions to take, in order. `now` is any monotonic clock in seconds and only bounds waiting. The
same object runs in a real client (psyche_core.client.runtime) and in the simulator.

Decided here: one piece of trainer work at a time, chosen afresh after each event (apply what is settled, oldest first; then the
digest; then train the current round; at an epoch's end close it). A client that cannot follow any more (a consensus payload
nobody has, states missed beyond the stored rounds, a model digest unlike the majority's) withdraws and stops with a sentence
rather than train on other weights. Refuses to interpret payloads or to know time-outs of the network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from psyche_core.client import events as ev
from psyche_core.client import report, speech
from psyche_core.client.agreement import unlike_witnesses
from psyche_core.client.epoch import PLAYING, EpochNotes, epoch_key
from psyche_core.client.inbox import EarlyMessages
from psyche_core.client.results import ResultDesk
from psyche_core.client.rounds import RoundRecord
from psyche_core.coordinator.commands import WarmupWitness, Withdraw, Witness
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import ClientState, NodeIdentity, RunState
from psyche_core.wire.messages import Finished, ModelDigest, Result

_LATE = (
    "the run is at step {step} and this version can only join a run at its start "
    "(fetching the model from other members is not built yet)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the machine waits, in seconds. payload: for a consensus payload (F11); peers: for all members in warmup."""

    payload: float = 60.0
    peers: float = 10.0


class ClientMachine:
    """See the module. sign: signs a commitment with our p2p key (64 bytes)."""

    def __init__(
        self, identity: NodeIdentity, run_id: str, *, sign: Callable[[bytes], bytes], patience: Patience | None = None
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
        self._join_asked = False
        self._model_ready = False
        self._model_digest = bytes(32)
        self._results = ResultDesk(run_id)
        self._busy = False
        self._figures = speech.Figures()

    def handle(self, event: ev.Event, now: float) -> list[ev.Action]:
        """Take one event in; returns the actions to carry out, in order. Nothing is returned after a Stop."""
        if self.stopped is not None:
            return []

        self._actions = []
        self._now = now
        self._take(event)
        if self.stopped is None:
            self._advance()
        return self._actions

    def _take(self, event: ev.Event) -> None:
        if isinstance(event, ev.ModelReady | ev.Trained | ev.TrainFailed | ev.Applied | ev.Digested | ev.EpochClosed):
            self._busy = False
        match event:
            case ev.StateSeen():
                self._on_state(event.state)
            case ev.MessageSeen():
                self._on_message(event)
            case ev.PeersSeen():
                self._peers = event.peers
            case ev.BandwidthSeen():
                self._figures = replace(self._figures, bytes_per_second=event.bytes_per_second)
            case ev.PayloadChecked():
                self._on_payload(event)
            case ev.PayloadMissing():
                if self._notes is not None:
                    self._notes.inbox.fetch_failed(event.payload_hash)
            case ev.ModelReady():
                self._on_model_ready(event)
            case ev.Trained():
                self._on_trained(event)
            case ev.TrainFailed():
                self._on_train_failed(event)
            case ev.Applied():
                self._on_applied(event)
            case ev.Digested():
                if self._notes is not None and event.height in self._notes.records:
                    self._notes.records[event.height].digest = event.digest
            case ev.EpochClosed():
                self._on_epoch_closed(event)
            case ev.CommandAnswered():
                self._on_answer(event)
            case ev.LeaveAsked():
                self._leave("left the run as asked", success=True)
            case ev.TimePassed():
                self._fetch_missing()

    def _do(self, *actions: ev.Action) -> None:
        self._actions.extend(actions)

    def _tell(self, event: report.Event) -> None:
        self._actions.append(ev.Tell(event))

    def _stop(self, reason: str, *, success: bool) -> None:
        self.stopped = ev.Stop(reason, success)
        self._do(self.stopped)

    def _leave(self, reason: str, *, success: bool = False) -> None:
        """Withdraw, then stop."""
        state = self.state
        member = self._notes is not None and state is not None and self._notes.healthy(state)
        if state is not None and (member or self.identity in state.pending):
            self._do(ev.Send(Withdraw(self.identity)))
        self._stop(reason, success=success)

    # -------------------------------------------------------------------------------------------- coordinator states

    def _on_state(self, state: CoordinatorState) -> None:
        previous, self.state = self.state, state
        members = tuple(client.id for client in state.epoch.clients if client.state is not ClientState.Ejected)
        if members != self._members:
            self._members = members
            self._do(ev.SetPeers(members))
        self._tell_phase(previous, state)
        self._follow(state)

    def _follow(self, state: CoordinatorState) -> None:
        """Enter a new epoch, see its rounds, join when we are not a member."""
        notes = self._notes
        if (notes is None or not notes.describes(state)) and state.run_state in (RunState.Warmup, *PLAYING):
            self._open_epoch(state)
        if self.stopped is None and self._notes is not None and self._notes.describes(state) and self._notes.slot is not None:
            self._see_rounds(state, self._notes)
        if self.stopped is None:
            self._join_if_needed(state)

    def _tell_phase(self, previous: CoordinatorState | None, state: CoordinatorState) -> None:
        def place(seen: CoordinatorState) -> tuple[RunState, int | None]:
            current = seen.current_round if seen.run_state in PLAYING else None
            return seen.run_state, current.height if current is not None else None

        if previous is None or place(previous) != place(state):
            phase, height = place(state)
            clients = len(state.healthy_slots)
            self._tell(report.PhaseChanged(phase.name, state.progress.epoch, state.progress.step, clients, height))

    def _join_if_needed(self, state: CoordinatorState) -> None:
        notes = self._notes
        if state.run_state is RunState.Finished or self._join_asked or (notes is not None and notes.healthy(state)):
            return

        if any(member.signer == self.identity.signer for member in state.pending):
            return

        if not self._model_ready and not self._busy and state.progress.step > 1:
            self._leave(_LATE.format(step=state.progress.step))
            return

        # A member that was dropped may only ask again once its epoch is over.
        if notes is None or notes.slot is None or state.run_state in (RunState.WaitingForMembers, RunState.Paused):
            self._join_asked = True
            self._do(ev.Join())

    def _open_epoch(self, state: CoordinatorState) -> None:
        slot = state.slot_of(self.identity)
        old = self._notes
        if self._model_ready and old is not None and not old.done:
            if not old.settled:
                self._leave("a new epoch began and this client had missed the end of the last one")
            # Else the last epoch is finished first; `_on_epoch_closed` comes back here.
        elif self._model_ready and slot is None:
            self._leave("the run went on without this client; its model is out of date now")
        elif slot is not None and not self._model_ready and not self._busy and state.progress.step > 1:
            self._leave(_LATE.format(step=state.progress.step))
        else:
            clients = tuple(client.id for client in state.epoch.clients)
            notes = self._notes = EpochNotes(epoch_key(state), state.progress.epoch, clients, slot, self._now)
            notes.digests.ours = self._model_digest
            self._join_asked = False
            for origin, message in self._early.take(notes.number, None):
                self._on_message(ev.MessageSeen(origin, message))

    def _see_rounds(self, state: CoordinatorState, notes: EpochNotes) -> None:
        current = state.current_round
        if current is None:
            return

        for playing in state.epoch.rounds:
            if playing.height > notes.newest + 1:
                self._leave(f"missed rounds {notes.newest + 1} to {playing.height - 1} of epoch {notes.number}")
                return

            if playing.height > notes.newest:
                self._open_round(RoundRecord.open(state, playing), notes)

        over = state.run_state not in PLAYING
        for record in notes.records.values():
            if record.settled_by is None and (over or record.height + 2 <= current.height):
                if record.height < current.height and state.round_at(record.height + 1) is None:
                    self._leave(f"missed what was decided about step {record.round.step}")
                    return

                record.settle(state)

    def _open_round(self, record: RoundRecord, notes: EpochNotes) -> None:
        height = record.height
        notes.records[height] = record
        for old in [h for h in notes.records if h < height - 4 and notes.records[h].applied]:
            del notes.records[old]
        if height >= 4:
            self._do(ev.Expire(notes.tag(height - 4)))
        share = record.shares.get(notes.slot) if notes.slot is not None else None
        if share and self._model_ready:
            self._do(ev.Prefetch(share))
        for origin, message in self._early.take(notes.number, height):
            self._on_message(ev.MessageSeen(origin, message))

    # -------------------------------------------------------------------------------------------- peers' messages

    def _on_message(self, event: ev.MessageSeen) -> None:
        notes, message = self._notes, event.message
        known = notes is not None and message.epoch == notes.number
        height = None if isinstance(message, ModelDigest) else message.height
        if notes is None or not known or (height is not None and height not in notes.records):
            # A peer may hear of a round or an epoch before we do; transports deliver a message once, so it is kept.
            if notes is None or message.epoch > notes.number or (known and (height or 0) > notes.newest):
                self._early.hold(event.origin, message)
            return

        slot = notes.slot_of_peer(event.origin)
        if slot is None:
            return

        match message:
            case ModelDigest():
                notes.digests.add(slot, message)
            case Finished():
                notes.records[message.height].finished.add(slot)
            case Result():
                self._do(*self._results.announced(notes, slot=slot, result=message))

    def _fetch_missing(self) -> None:
        if self._notes is not None:
            self._do(*self._results.fetch_missing(self._notes))

    def _on_payload(self, event: ev.PayloadChecked) -> None:
        if self._notes is not None:
            self._notes.inbox.checked(event.payload_hash, valid=event.valid)
            for record in self._notes.records.values():
                record.payload_arrived(event.payload_hash, self._notes.inbox.valid)

    # -------------------------------------------------------------------------------------------- our own work

    def _on_model_ready(self, event: ev.ModelReady) -> None:
        self._model_ready = True
        self._model_digest = event.digest
        self._results.max_payload_bytes = event.max_payload_bytes
        if self._notes is not None:
            self._notes.digests.ours = event.digest
        self._fetch_missing()

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
        result = Result(
            notes.number,
            event.height,
            step,
            share,
            event.payload_hash,
            event.payload_bytes,
            commitment,
            self._sign(commitment),
        )
        record.add(notes.slot, result)
        self._on_payload(ev.PayloadChecked(event.payload_hash, valid=True))
        self._do(ev.Broadcast(result, notes.tag(event.height)))

    def _on_train_failed(self, event: ev.TrainFailed) -> None:
        if self._notes is not None and event.height in self._notes.records:
            self._notes.records[event.height].own_done = True
        self._tell(report.Problem("error", event.reason))

    def _on_applied(self, event: ev.Applied) -> None:
        if self._notes is not None:
            record = self._notes.records[event.height]
            record.applied = True
            accepted, trained = len(record.accepted), len(record.shares)
            self._tell(report.StepApplied(record.epoch, record.round.step, accepted, trained, event.seconds))

    def _on_epoch_closed(self, event: ev.EpochClosed) -> None:
        notes, state = self._notes, self.state
        if notes is None or state is None:
            return

        notes.closed = True
        self._model_digest = notes.digests.ours = event.digest
        notes.digests.note_own(notes.slot, ended=True)
        self._tell(report.EpochDigest(notes.number, notes.last_step(state), event.digest.hex()))
        self._do(ev.Broadcast(ModelDigest(notes.number, True, event.digest), notes.tag(notes.newest)))
        self._follow(state)

    def _on_answer(self, event: ev.CommandAnswered) -> None:
        command, notes = event.command, self._notes
        if notes is None or self.state is None:
            return

        if isinstance(command, Witness) and event.code is None:
            record = notes.records.get(command.statement.height)
            if record is not None:
                complete = record.all_finished(frozenset(self.state.healthy_slots))
                self._tell(report.WitnessSent(record.epoch, record.height, complete))
        elif isinstance(command, WarmupWitness) and event.code not in (None, "InvalidRunState", "DuplicateWitness"):
            notes.ready_sent = False

    # -------------------------------------------------------------------------------------------- what to do next

    def _advance(self) -> None:
        state, notes = self.state, self._notes
        if state is None:
            return

        if notes is not None and notes.describes(state) and notes.healthy(state) and self._model_ready:
            if state.run_state is not RunState.Warmup:
                self._do(*speech.in_round(self.identity, state, notes, self._figures))
            elif not self._busy:
                waited = self._now - notes.since > self._patience.peers
                self._do(*speech.in_warmup(self.identity, state, notes, peers=self._peers, waited_enough=waited))
        if notes is not None and notes.slot is not None:
            self._judge_digests(state, notes)
        if self.stopped is None and not self._busy and notes is not None and notes.slot is not None:
            self._work(state, notes)
        nothing_left = not self._busy and (notes is None or notes.done or notes.slot is None)
        if self.stopped is None and nothing_left and state.run_state is RunState.Finished:
            self._stop(f"the run finished after {state.progress.step - 1} steps", success=True)

    def _work(self, state: CoordinatorState, notes: EpochNotes) -> None:
        if not self._model_ready:
            if state.run_state in (RunState.Warmup, *PLAYING):
                self._start(ev.Load(state))
            return

        for height in sorted(notes.records):
            record = notes.records[height]
            if record.round.drain or record.applied:
                continue

            if record.settled_by is None:
                break

            self._apply(record, notes)
            return

        newest = notes.records.get(notes.newest)
        if newest is None:
            return

        playing = notes.describes(state) and state.run_state in PLAYING
        if playing:
            self._play(newest, notes, state)
        elif not notes.closed:
            self._start(ev.CloseEpoch(notes.number, notes.last_step(state)))

    def _play(self, record: RoundRecord, notes: EpochNotes, state: CoordinatorState) -> None:
        share = record.shares.get(notes.slot) if notes.slot is not None else None
        if not record.digest_asked:
            record.digest_asked = True
            self._start(ev.Digest(record.height, record.round.seed))
        elif share is not None and not record.own_started and notes.healthy(state):
            record.own_started = True
            self._start(ev.Train(record.height, record.round.step, share, notes.tag(record.height)))

    def _start(self, work: ev.Work) -> None:
        self._busy = True
        self._do(work)

    def _apply(self, record: RoundRecord, notes: EpochNotes) -> None:
        """Apply a settled round once every consensus payload is here; ask for what is missing, for a bounded time (F11)."""
        payloads: list[bytes] = []
        for slot in sorted(record.accepted):
            result = record.chosen(slot)
            if result is not None and result.payload_hash in notes.inbox.invalid:
                continue  # refused by everybody's parameter table alike

            if result is not None and result.payload_hash in notes.inbox.valid:
                payloads.append(result.payload_hash)
                continue

            record.waiting_since = self._now if record.waiting_since is None else record.waiting_since
            if self._now - record.waiting_since > self._patience.payload:
                self._leave(f"nobody could give us the accepted result of slot {slot} for step {record.round.step}")
            elif result is not None:
                self._do(*self._results.fetch(notes, record, result, notes.clients[slot].p2p))
            return

        self._start(ev.Apply(record.height, record.round.step, tuple(payloads), notes.slot in record.accepted))

    # -------------------------------------------------------------------------------------------- agreement

    def _judge_digests(self, state: CoordinatorState, notes: EpochNotes) -> None:
        """Compare our replica with the others': full digests at an epoch's ends, sampled ones of each settled round."""
        if not notes.describes(state):
            return

        for peer, theirs in notes.digests.disagreements():
            name = notes.clients[peer].short
            self._tell(report.ReplicasDiffer(notes.number, notes.digests.ours.hex(), theirs.hex(), name))
        if notes.digests.outvoted(len(notes.clients)):
            self._leave("this client's model differs from that of half of the members or more")
            return

        step = unlike_witnesses(notes.records.values())
        if step is not None:
            self._leave(f"this client's model differs from the witnesses' at step {step}")
