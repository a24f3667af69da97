"""The whole behaviour of a client as a pure state machine: events in, actions out. No I/O, clock, randomness or torch.

`handle(event, now)` returns the actions to take, in order. `now` is any monotonic clock in seconds and only limits waiting. The
same object runs in a real client (`psyche_core.client.runtime`) and in the simulator.

After each event the machine chooses at most one piece of trainer work. A client that cannot follow, or whose replica differs from
the others', stops training, gets the masters from them, and comes back in the same epoch; it gives up only when that fails. What
the machine knows is in `state`. Payload contents and network time-outs are not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import announcements, coordinator_updates, peer_messages, scheduler, work_results
from psyche_core.client.machine import events as ev
from psyche_core.client.machine.epoch import ENTERABLE_OR_OVER, LOADABLE, PLAYING, EpochNotes, masters_due
from psyche_core.client.machine.replica import checkpoint_upload, contested_model, resync
from psyche_core.client.machine.rounds.results import ResultTracker, Verify
from psyche_core.client.machine.rounds.round import RoundRecord
from psyche_core.client.machine.state import MachineState
from psyche_core.client.machine.timeouts import Timeouts
from psyche_core.client.machine.verification import challenged_shares
from psyche_core.coordinator.checkpoints import OPEN
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry import events as telemetry
from psyche_core.types import NodeIdentity, RunState
from psyche_core.verification.epoch import DRAWN_AFTER
from psyche_core.wire.messages import Finished, Result

__all__ = ["ClientMachine", "Timeouts"]


class ClientMachine:
    """See the module.

    sign: signs a commitment (32 bytes) with our p2p key (64 bytes). verify: checks such a signature; None for the real check.
    can_store: whether there is a store to put the model into.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        run_id: str,
        *,
        sign: Callable[[bytes], bytes],
        timeouts: Timeouts | None = None,
        verify: Verify | None = None,
        can_store: bool = False,
    ) -> None:
        results = ResultTracker(identity, verify=verify)
        self._state = MachineState(identity, run_id, timeouts or Timeouts(), results, can_store=can_store)
        self._sign = sign

    @property
    def identity(self) -> NodeIdentity:
        """Our identity."""
        return self._state.identity

    @property
    def state(self) -> CoordinatorState | None:
        """The newest coordinator state, None before the first."""
        return self._state.state

    @property
    def stopped(self) -> act.Stop | None:
        """How it ended, None while it runs."""
        return self._state.stopped

    @property
    def masters_at(self) -> int | None:
        """The step whose results are in our masters, None when that is unknown."""
        return self._state.masters_at

    @property
    def masters_are_valid(self) -> bool:
        """Whether our masters seem right, so that they need not be replaced by the others'."""
        return not self._state.masters_invalid and (self._state.notes is None or self._state.notes.resync.reason is None)

    @property
    def model_awaited(self) -> bool:
        """Whether a member that asked for our model has not announced yet that it has one."""
        client, notes = self._state, self._state.notes
        if notes is None or client.masters_at is None:
            return False

        return notes.snapshot_requests.awaited_by(_without_end_digest(client, notes), client.masters_at)

    @property
    def notes(self) -> EpochNotes | None:
        """Our notes about the epoch, for tests and displays."""
        return self._state.notes

    def size_report(self) -> dict[str, int]:
        """Number of stored entries by kind; bounded whatever peers send."""
        notes = self._state.notes
        records = notes.records.values() if notes is not None else ()
        return {
            "records": len(records),
            "candidates": sum(len(known) for record in records for known in record.candidates.values()),
            "payloads": len(notes.payloads) if notes is not None else 0,
            "early_messages": len(self._state.early),
            "offers": sum(map(len, notes.resync.offers.values())) if notes is not None else 0,
            "wanted_snapshots": sum(map(len, notes.snapshot_requests.requested.values())) if notes is not None else 0,
            "offered_snapshots": len(self._state.snapshot_offers.offered),
            "openings": len(notes.duties.parts) if notes is not None else 0,
        }

    def handle(self, event: ev.Event, now: float) -> list[act.Action]:
        """Handle one event; returns the actions to carry out, in order. Nothing is returned after a Stop."""
        client = self._state
        if client.stopped is not None:
            return []

        client.actions = []
        client.advance_clock(now)
        self._dispatch(client, event)
        if client.state is None or isinstance(event, ev.CommandAnswered):
            return client.actions

        message = event.message if isinstance(event, ev.MessageSeen) else None
        if isinstance(message, Finished):
            _announce_if_in_round(client, client.state)  # most events are these two, and nothing else can be due after them
        elif not isinstance(message, Result):
            _advance(client, client.state)
        return _up_to_stop(client)

    def _dispatch(self, client: MachineState, event: ev.Event) -> None:
        match event:
            case ev.MessageSeen():
                peer_messages.receive(client, event.origin, event.message)
            case ev.StateSeen():
                coordinator_updates.receive_state(client, event.state)
            case ev.PayloadChecked():
                peer_messages.payload_checked(client, event.payload_hash, valid=event.valid, tag=event.tag)
            case ev.PayloadCheckFailed():
                peer_messages.payload_check_failed(client, event)
            case ev.TimePassed():
                peer_messages.retry_requests(client)
                if client.state is not None:
                    coordinator_updates.keep_membership(client, client.state)
            case ev.CommandAnswered():
                work_results.command_answered(client, event)
            case ev.PayloadMissing():
                peer_messages.payload_missing(client, event.payload_hash)
            case ev.PeersSeen():
                client.peers, client.neighbours = event.peers, event.neighbours
            case ev.BandwidthSeen():
                client.figures = replace(client.figures, bytes_per_second=event.bytes_per_second)
            case ev.ModelStored():
                checkpoint_upload.model_stored(client, event)
            case ev.StoreFailed():
                checkpoint_upload.store_failed(client, event)
            case ev.LeaveRequested():
                coordinator_updates.leave(client)
            case ev.TimerExpired():
                work_results.timer_expired(client, event)
            case ev.ModelReady() | ev.SourceMissing() | ev.Trained() | ev.TrainFailed() | ev.Applied() | ev.PayloadsLost():
                work_results.work_done(client, event, sign=self._sign)
            case ev.PartReady() | ev.PartFailed() | ev.PartFetched() | ev.PartMissing() | ev.PartsChecked():
                challenged_shares.part_handled(client, event)
            case ev.Recomputed() | ev.RecomputeFailed():
                work_results.work_done(client, event, sign=self._sign)
            case ev.Digested() | ev.EpochClosed() | ev.SnapshotTaken() | ev.SnapshotFailed():
                work_results.work_done(client, event, sign=self._sign)
            case ev.ModelFetched() | ev.ModelFetchFailed() | ev.WorkFailed():
                work_results.work_done(client, event, sign=self._sign)
            case _:
                assert_never(event)


def _up_to_stop(client: MachineState) -> list[act.Action]:
    """The actions up to a Stop: nobody would carry out the later ones."""
    if client.stopped is None:
        return client.actions

    return client.actions[: client.actions.index(client.stopped) + 1]


def _advance(client: MachineState, state: CoordinatorState) -> None:
    """Do what is due after an event: repair our masters, send messages, leave, work, stop."""
    notes = client.notes
    described = notes is not None and notes.describes(state)
    if notes is not None and not described and state.run_state in ENTERABLE_OR_OVER:
        coordinator_updates.follow(client, state)  # we could not leave the last epoch before
        notes = client.notes
        described = notes is not None and notes.describes(state)
    if notes is not None and notes.slot is not None and (client.model_ready or client.source_missing) and described:
        resync.check_masters(client, state, notes)
        if client.stopped is None and client.model_ready:
            challenged_shares.update(client, state, notes)
            _announce(client, state, notes)
    if client.stopped is not None:
        return

    if client.upload is not None or state.run_state in OPEN:
        checkpoint_upload.update(client, state)
    if client.leaving is not None:
        _finish_leaving(client, state, since=client.leaving)
        return

    if client.work is None and notes is not None and notes.slot is not None:
        _choose_work(client, state, notes)
    if (
        state.run_state is RunState.Finished
        and client.work is None
        and not checkpoint_upload.busy(client)
        and _nothing_left(client, state, notes)
    ):
        client.stop(f"the run finished after {state.progress.step - 1} steps", success=True)


def _announce_if_in_round(client: MachineState, state: CoordinatorState) -> None:
    notes = client.notes
    if notes is None or not client.model_ready or state.run_state not in PLAYING or notes.slot not in client.healthy:
        return
    if notes.describes(state):
        _announce_in_round(client, state, notes)


def _announce_in_round(client: MachineState, state: CoordinatorState, notes: EpochNotes) -> None:
    for action in announcements.in_round(client.identity, state, notes, client.figures, healthy=client.healthy, now=client.now):
        client.emit(action)
        if isinstance(action, act.Broadcast) and isinstance(action.message, Finished):
            client.finish_estimator.finished_sent(action.tag, now=client.now)


def _announce(client: MachineState, state: CoordinatorState, notes: EpochNotes) -> None:
    """Send what is due: readiness, coming back, Finished, statements, health checks."""
    healthy = notes.slot in client.healthy
    if healthy and state.run_state in PLAYING:
        _announce_in_round(client, state, notes)
    elif notes.resync.reason is not None or client.leaving is not None or client.work is not None:
        return
    elif healthy and state.run_state is RunState.Warmup:
        if contested_model.defers_readiness(client, state, notes):
            return
        announcements.repeat_if_unheard(state, notes, now=client.now, timeouts=client.timeouts)
        actions = announcements.in_warmup(
            client.identity,
            state,
            notes,
            peers=client.peers,
            neighbours=client.neighbours,
            now=client.now,
            timeouts=client.timeouts,
        )
        if actions:
            notes.compare_due, notes.ready_sent_at = True, client.now
        client.emit(*actions)
    elif not healthy and client.masters_at == masters_due(state):
        client.emit(*announcements.coming_back(client.identity, state, notes, now=client.now, timeouts=client.timeouts))


def _choose_work(client: MachineState, state: CoordinatorState, notes: EpochNotes) -> None:
    if not client.model_ready:
        if client.source_missing and scheduler.starts_from_members(state):
            _fetch_whole_model(client, state, notes)
        elif state.run_state in LOADABLE and notes.describes(state):
            client.start(act.Load(state))
        return

    work = scheduler.next_work(
        state,
        notes,
        masters_at=client.masters_at,
        healthy=client.healthy,
        offers=client.snapshot_offers,
        now=client.now,
        timeouts=client.timeouts,
    )
    if isinstance(work, RoundRecord):
        _apply(client, notes, work)
    elif work is not None:
        client.start(work)
        if isinstance(work, act.Train):
            _set_timer(client, work)


def _set_timer(client: MachineState, work: act.Train) -> None:
    """Request a reminder for when our training should be almost done, if that can be estimated."""
    seconds = client.finish_estimator.training_started(work.tag, samples=sum(len(batch) for batch in work.share), now=client.now)
    if seconds is not None:
        client.emit(act.SetTimer(work.tag, seconds))


def _fetch_whole_model(client: MachineState, state: CoordinatorState, notes: EpochNotes) -> None:
    """Fetch the whole model from others, including how it is built."""
    if notes.resync.reason is not None and notes.describes(state):
        work = scheduler.fetch(state, notes, healthy=client.healthy, now=client.now, timeouts=client.timeouts, build=True)
        if work is not None:
            client.start(work)


def _apply(client: MachineState, notes: EpochNotes, record: RoundRecord) -> None:
    """Apply a settled round once every accepted payload is here; request missing ones (F11)."""
    payloads: list[bytes] = []
    commitments: list[bytes] = []
    tag = notes.tag(record.height)
    for slot in sorted(record.accepted):
        result = record.decided_result(slot)
        if result == "void":
            continue  # everybody omits it; the evidence against its trainer returns the samples to the queue
        if result is not None and result.payload_hash in notes.payloads.invalid:
            continue  # every member's parameter table rejects it

        if result is not None and notes.payloads.holds(result.payload_hash, tag=tag):
            payloads.append(result.payload_hash)
            commitments.append(result.commitment)
            if record.verified.get(slot) != result.commitment:
                record.verified[slot] = result.commitment
                record.kept.discard(slot)
            continue

        record.waiting_since = client.now if record.waiting_since is None else record.waiting_since
        if result is not None:
            client.emit(*client.results.fetch(notes, record, result, notes.clients[slot].p2p))
        return

    assert record.settled_by is not None
    client.emit(*announcements.keep_verified(record, notes))
    client.start(
        act.Apply(
            record.height,
            record.round.step,
            tuple(payloads),
            notes.slot in record.accepted,
            epoch=notes.number,
            commitments=tuple(commitments),
            decision=record.decision(notes.number),
            data_index=record.settled_by.progress.data_index,
            generation=record.settled_by.generation,
        )
    )


def _finish_leaving(client: MachineState, state: CoordinatorState, *, since: float) -> None:
    """Stop once our results are settled and no share of ours is or may be checked, or after a bounded time of serving them."""
    notes = client.notes
    unsettled = (
        notes is not None
        and notes.slot is not None
        and notes.describes(state)
        and state.run_state in PLAYING
        and not client.healthy <= {notes.slot}  # else nobody is there to fetch our results, or to attest to them
        and any(record.own_done and record.settled_by is None for record in notes.records.values())
    )
    if unsettled and client.now - since <= client.timeouts.leaving:
        return
    longest = client.timeouts.leaving_checked
    if _is_checked(state, notes) and client.now - since <= longest:
        if not client.leaving_told:
            client.leaving_told = True
            sentence = (
                f"members are checking this client's work, so it shows its shares until they are done, {longest:.0f} s at most; "
                "if it ends at once, this epoch may not be paid"
            )
            client.notify(telemetry.Problem("warning", sentence))
        return

    if _may_be_drawn(state, notes) and client.now - since <= longest:
        return

    client.stop("left the run as asked", success=True)


def _is_checked(state: CoordinatorState, notes: EpochNotes | None) -> bool:
    """Whether a share that we trained in this epoch is being checked."""
    if notes is None or not notes.describes(state) or state.run_state not in PLAYING:
        return False

    return any(one.trainer == notes.slot for one in state.epoch.challenges)


def _may_be_drawn(state: CoordinatorState, notes: EpochNotes | None) -> bool:
    """Whether a share that we trained in this epoch may still be drawn for a check, which is a round after it is settled."""
    if notes is None or not notes.describes(state) or state.run_state not in PLAYING or state.config.verification_percent == 0:
        return False

    current = state.current_round
    newest = max((record.height for record in notes.records.values() if record.own_done), default=-DRAWN_AFTER)
    return current is not None and not current.drain and current.height < newest + DRAWN_AFTER


def _nothing_left(client: MachineState, state: CoordinatorState, notes: EpochNotes | None) -> bool:
    """Whether we have finished the last epoch, and so have the other members as far as we wait for them."""
    if notes is None or notes.slot is None or not notes.records:
        return True
    if not client.model_ready:
        # Others may still give us the whole model; `resync` stops us when nobody can.
        return not (client.source_missing and scheduler.starts_from_members(state) and notes.describes(state))

    missing = _without_end_digest(client, notes)
    # A member that asked for our model needs us until it has chosen our offer; the runtime serves what it then fetches. Not
    # longer, because a liar that asks and never sends its digest would hold everybody.
    began = client.now - client.timeouts.offers - client.timeouts.leaving
    asked = client.masters_at is not None and notes.snapshot_requests.awaited_by(missing, client.masters_at, since=began)
    timeout = client.timeouts.payload if asked else client.timeouts.leaving
    return notes.closed and (not missing or client.now - notes.closed_at > timeout)


def _without_end_digest(client: MachineState, notes: EpochNotes) -> frozenset[int]:
    """The other healthy slots that have not sent the digest of the model they ended with."""
    return client.healthy.difference((notes.slot,), notes.digests.senders(ended=True))
