"""The whole behaviour of a client as a pure state machine: events in, actions out; no I/O, no clock, no randomness, no torch.

`handle(event, now)` returns the actions to take, in order. `now` is any monotonic clock in seconds and only bounds waiting. The
same object runs in a real client (psyche_core.client.runtime.runtime) and in the simulator.

Decided here: one piece of trainer work at a time, chosen afresh after each event; a client that cannot follow, or whose replica
is not the others', stops training, gets the masters from them and comes back in the same epoch before it ever gives up. What the
machine knows is in `standing`, which names the rooms that do the rest. Refuses to interpret payloads or to know time-outs of the
network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from psyche_core.client.machine import (
    announcements,
    checkpoint_upload,
    coordinator_updates,
    peer_messages,
    resync,
    scheduler,
    work_results,
)
from psyche_core.client.machine import events as ev
from psyche_core.client.machine.epoch import ENTERABLE_OR_OVER, LOADABLE, PLAYING, EpochNotes, masters_due
from psyche_core.client.machine.results import ResultDesk, Verify
from psyche_core.client.machine.round import RoundRecord
from psyche_core.client.machine.state import Standing
from psyche_core.client.machine.timeouts import Patience
from psyche_core.coordinator import witness
from psyche_core.coordinator.checkpoints import OPEN
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import NodeIdentity, RunState
from psyche_core.wire.messages import Finished, Result

__all__ = ["ClientMachine", "Patience"]


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
        patience: Patience | None = None,
        verify: Verify | None = None,
        can_store: bool = False,
    ) -> None:
        desk = ResultDesk(identity, verify=verify)
        self._me = Standing(identity, run_id, patience or Patience(), desk, can_store=can_store)
        self._sign = sign

    @property
    def identity(self) -> NodeIdentity:
        """Who we are."""
        return self._me.identity

    @property
    def state(self) -> CoordinatorState | None:
        """The newest coordinator state, None before the first."""
        return self._me.state

    @property
    def stopped(self) -> ev.Stop | None:
        """How it ended, None while it goes on."""
        return self._me.stopped

    @property
    def masters_at(self) -> int | None:
        """The step whose results are in our masters, None when that is unknown."""
        return self._me.masters_at

    @property
    def masters_are_sound(self) -> bool:
        """Whether nothing is known against our masters: they are not to be replaced by the others'."""
        return not self._me.doubtful and (self._me.notes is None or self._me.notes.repair.reason is None)

    @property
    def notes(self) -> EpochNotes | None:
        """What is noted about the epoch, for tests and displays to look at."""
        return self._me.notes

    def size_report(self) -> dict[str, int]:
        """How much is remembered, by kind: bounded whatever peers send."""
        notes = self._me.notes
        records = notes.records.values() if notes is not None else ()
        return {
            "records": len(records),
            "candidates": sum(len(known) for record in records for known in record.candidates.values()),
            "payloads": len(notes.inbox) if notes is not None else 0,
            "early_messages": len(self._me.early),
            "offers": sum(map(len, notes.repair.offers.values())) if notes is not None else 0,
            "wanted_snapshots": len(notes.generosity.asked) if notes is not None else 0,
        }

    def handle(self, event: ev.Event, now: float) -> list[ev.Action]:
        """Take one event in; returns the actions to carry out, in order. Nothing is returned after a Stop."""
        me = self._me
        if me.stopped is not None:
            return []

        me.actions = []
        me.wake(now)
        self._take(me, event)
        if me.state is None or isinstance(event, ev.CommandAnswered):
            return me.actions

        message = event.message if isinstance(event, ev.MessageSeen) else None
        if isinstance(message, Finished):
            _speak_in_round(me, me.state)  # most events are these two, and nothing else can be due after them
        elif not isinstance(message, Result):
            _advance(me, me.state)
        return _up_to_stop(me)

    def _take(self, me: Standing, event: ev.Event) -> None:
        match event:
            case ev.MessageSeen():
                peer_messages.hear(me, event.origin, event.message)
            case ev.StateSeen():
                coordinator_updates.see_state(me, event.state)
            case ev.PayloadChecked():
                peer_messages.payload_checked(me, event.payload_hash, valid=event.valid, tag=event.tag)
            case ev.PayloadUnjudged():
                peer_messages.payload_unjudged(me, event)
            case ev.TimePassed():
                peer_messages.ask_again(me)
                if me.state is not None:
                    coordinator_updates.keep_membership(me, me.state)
            case ev.CommandAnswered():
                work_results.command_answered(me, event)
            case ev.PayloadMissing():
                peer_messages.payload_missing(me, event.payload_hash)
            case ev.PeersSeen():
                me.peers = event.peers
            case ev.BandwidthSeen():
                me.figures = replace(me.figures, bytes_per_second=event.bytes_per_second)
            case ev.ModelStored():
                checkpoint_upload.model_stored(me, event)
            case ev.StoreFailed():
                checkpoint_upload.store_failed(me, event)
            case ev.LeaveAsked():
                coordinator_updates.leave(me)
            case ev.Reminded():
                work_results.reminded(me, event)
            case ev.ModelReady() | ev.SourceMissing() | ev.Trained() | ev.TrainFailed() | ev.Applied() | ev.PayloadsLost():
                work_results.work_done(me, event, sign=self._sign)
            case ev.Digested() | ev.EpochClosed() | ev.SnapshotTaken() | ev.SnapshotFailed():
                work_results.work_done(me, event, sign=self._sign)
            case ev.ModelFetched() | ev.ModelFetchFailed() | ev.WorkFailed():
                work_results.work_done(me, event, sign=self._sign)
            case _:
                assert_never(event)


def _up_to_stop(me: Standing) -> list[ev.Action]:
    """The actions up to a Stop: what was asked for after it has nobody to do it."""
    if me.stopped is None:
        return me.actions

    return me.actions[: me.actions.index(me.stopped) + 1]


def _advance(me: Standing, state: CoordinatorState) -> None:
    """Do what is due after an event: mend our masters, speak, leave, work, end."""
    notes = me.notes
    described = notes is not None and notes.describes(state)
    if notes is not None and not described and state.run_state in ENTERABLE_OR_OVER:
        coordinator_updates.follow(me, state)  # something kept us in the last epoch
        notes = me.notes
        described = notes is not None and notes.describes(state)
    if notes is not None and notes.slot is not None and (me.model_ready or me.source_missing) and described:
        resync.check_masters(me, state, notes)
        if me.stopped is None and me.model_ready:
            _speak(me, state, notes)
    if me.stopped is not None:
        return

    if me.storage is not None or state.run_state in OPEN:
        checkpoint_upload.consider(me, state)
    if me.leaving is not None:
        _finish_leaving(me, state, since=me.leaving)
        return

    if me.work is None and notes is not None and notes.slot is not None:
        _choose_work(me, state, notes)
    if state.run_state is RunState.Finished and me.work is None and not checkpoint_upload.busy(me) and _nothing_left(me, notes):
        me.stop(f"the run finished after {state.progress.step - 1} steps", success=True)


def _speak_in_round(me: Standing, state: CoordinatorState) -> None:
    notes = me.notes
    if notes is None or not me.model_ready or state.run_state not in PLAYING or notes.slot not in me.healthy:
        return
    if notes.describes(state):
        _say_in_round(me, state, notes)


def _say_in_round(me: Standing, state: CoordinatorState, notes: EpochNotes) -> None:
    for action in announcements.in_round(me.identity, state, notes, me.figures, healthy=me.healthy, now=me.now):
        me.do(action)
        if isinstance(action, ev.Broadcast) and isinstance(action.message, Finished):
            me.pace.said_finished(action.tag, now=me.now)


def _speak(me: Standing, state: CoordinatorState, notes: EpochNotes) -> None:
    """Say what is due: readiness, coming back, Finished, statements, health."""
    healthy = notes.slot in me.healthy
    if healthy and state.run_state in PLAYING:
        _say_in_round(me, state, notes)
    elif notes.repair.reason is not None or me.leaving is not None or me.work is not None:
        return
    elif healthy and state.run_state is RunState.Warmup:
        waited = me.now - notes.since > me.patience.peers
        said = announcements.in_warmup(me.identity, state, notes, peers=me.peers, waited_enough=waited)
        notes.judge = notes.judge or bool(said)
        me.do(*said)
    elif not healthy and me.masters_at == masters_due(state):
        me.do(*announcements.coming_back(me.identity, state, notes, now=me.now, patience=me.patience))


def _choose_work(me: Standing, state: CoordinatorState, notes: EpochNotes) -> None:
    if not me.model_ready:
        if me.source_missing and scheduler.starts_from_members(state):
            _fetch_everything(me, state, notes)
        elif state.run_state in LOADABLE and notes.describes(state):
            me.start(ev.Load(state))
        return

    work = scheduler.next_work(state, notes, masters_at=me.masters_at, healthy=me.healthy, now=me.now, patience=me.patience)
    if isinstance(work, RoundRecord):
        _apply(me, notes, work)
    elif work is not None:
        me.start(work)
        if isinstance(work, ev.Train):
            _be_reminded(me, work)


def _be_reminded(me: Standing, work: ev.Train) -> None:
    """Be told when our training is as good as done, if that can be foreseen."""
    seconds = me.pace.begins(work.tag, samples=sum(len(batch) for batch in work.share), now=me.now)
    if seconds is not None:
        me.do(ev.Remind(work.tag, seconds))


def _fetch_everything(me: Standing, state: CoordinatorState, notes: EpochNotes) -> None:
    """Get the whole model from others, how it is built included."""
    if notes.repair.reason is not None and notes.describes(state):
        work = scheduler.fetch(state, notes, healthy=me.healthy, now=me.now, patience=me.patience, build=True)
        if work is not None:
            me.start(work)


def _apply(me: Standing, notes: EpochNotes, record: RoundRecord) -> None:
    """Apply a settled round once every consensus payload is here; ask for what is missing (F11)."""
    payloads: list[bytes] = []
    commitments: list[bytes] = []
    tag = notes.tag(record.height)
    for slot in sorted(record.accepted):
        result = record.judged(slot)
        if result == "void":
            continue  # everybody leaves it out; the evidence against its trainer returns the samples to the queue
        if result is not None and result.payload_hash in notes.inbox.invalid:
            continue  # refused by everybody's parameter table alike

        if result is not None and notes.inbox.holds(result.payload_hash, tag=tag):
            payloads.append(result.payload_hash)
            commitments.append(result.commitment)
            if record.verified.get(slot) != result.commitment:
                record.verified[slot] = result.commitment
                record.kept.discard(slot)
            continue

        record.waiting_since = me.now if record.waiting_since is None else record.waiting_since
        if result is not None:
            me.do(*me.results.fetch(notes, record, result, notes.clients[slot].p2p))
        return

    assert record.settled_by is not None
    attesting = record.settled_by.round_at(record.height + 1)
    me.do(*announcements.keep_verified(record, notes))
    me.start(
        ev.Apply(
            record.height,
            record.round.step,
            tuple(payloads),
            notes.slot in record.accepted,
            epoch=notes.number,
            commitments=tuple(commitments),
            statements=witness.statements_digest(() if attesting is None else attesting.statements),
            data_index=record.settled_by.progress.data_index,
            generation=record.settled_by.generation,
        )
    )


def _finish_leaving(me: Standing, state: CoordinatorState, *, since: float) -> None:
    """Stop once our results are settled, or after a bounded time of serving them."""
    notes = me.notes
    unsettled = (
        notes is not None
        and notes.slot is not None
        and notes.describes(state)
        and state.run_state in PLAYING
        and any(record.own_done and record.settled_by is None for record in notes.records.values())
    )
    if not unsettled or me.now - since > me.patience.leaving:
        me.stop("left the run as asked", success=True)


def _nothing_left(me: Standing, notes: EpochNotes | None) -> bool:
    """Whether the last epoch is behind us and the other members', as far as we wait for them."""
    if notes is None or notes.slot is None or not me.model_ready or not notes.records:
        return True

    others = me.healthy - {notes.slot}
    heard = others <= notes.digests.heard(ended=True)
    asked = me.masters_at is not None and notes.generosity.wanted(me.masters_at)  # who asked for our model needs us for longer
    patience = me.patience.payload if asked else me.patience.leaving
    return notes.closed and (heard or me.now - notes.closed_at > patience)
