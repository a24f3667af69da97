"""What finished work changes: the model is open, a share is trained, results are applied, the epoch is closed.

Also answers to our commands. Refuses to choose what comes next (`agenda`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from psyche_core.client.machine import checkpoint_upload, coordinator_updates, resync
from psyche_core.client.machine import events as ev
from psyche_core.client.machine.peer_messages import ask_again, payload_checked
from psyche_core.client.machine.state import Standing
from psyche_core.coordinator.commands import Checkpoint, EpochDigest, Equivocation, WarmupWitness, Witness
from psyche_core.telemetry import events as telemetry
from psyche_core.wire.messages import ModelDigest, ModelOffer, Result


def work_done(me: Standing, event: ev.WorkDone, *, sign: Callable[[bytes], bytes]) -> None:
    """Take in the answer to our piece of work. sign: signs a commitment with our p2p key."""
    me.work = None
    match event:
        case ev.Trained():
            _trained(me, event, sign=sign)
        case ev.Applied():
            _applied(me, event)
        case ev.Digested():
            _digested(me, event)
        case ev.ModelReady():
            _model_ready(me, event)
        case ev.SourceMissing():
            me.source_missing = True
            me.tell(telemetry.Problem("warning", f"{event.reason}; asking the other members"))
        case ev.TrainFailed():
            _train_failed(me, event)
        case ev.EpochClosed():
            _epoch_closed(me, event)
        case ev.SnapshotTaken():
            _snapshot_taken(me, event)
        case ev.ModelFetched():
            resync.model_fetched(me, event)
        case ev.ModelFetchFailed():
            resync.model_fetch_failed(me, event)
        case ev.PayloadsLost():
            _payloads_lost(me, event)
        case ev.WorkFailed():
            _work_failed(me, event)
        case ev.SnapshotFailed():
            pass  # told already, and nobody waits for it
        case _:
            assert_never(event)


def command_answered(me: Standing, event: ev.CommandAnswered) -> None:
    """The coordinator took or refused a command of ours."""
    command, notes = event.command, me.notes
    if notes is None:
        return

    if isinstance(command, Witness) and event.code is None:
        record = notes.records.get(command.statement.height)
        if record is not None:
            me.tell(telemetry.WitnessSent(record.epoch, record.height, record.all_finished(me.healthy)))
    elif isinstance(command, Checkpoint):
        checkpoint_upload.answered(me, command, event.code)
    elif isinstance(command, Equivocation):
        record = notes.records.get(command.height)
        if record is not None and command.epoch == notes.number and command.index in record.evidence:
            record.evidence[command.index].answered = True
    elif isinstance(command, WarmupWitness) and event.code is not None:
        if event.code == "RejoinsExhausted":
            notes.rejoin_refused = True
        elif event.code not in ("InvalidRunState", "DuplicateWitness"):
            notes.ready_sent = False


def _model_ready(me: Standing, event: ev.ModelReady) -> None:
    me.model_ready = True
    me.model_digest = event.digest
    me.masters_at = me.digest_at = event.step
    me.held |= dict(event.held)
    me.journalled = event.journalled
    me.doubtful = False
    me.results.max_payload_bytes = event.max_payload_bytes
    if me.notes is None or me.state is None:
        return

    me.loaded_generation = me.state.generation
    me.notes.digests.ours = event.digest
    if event.step is not None:
        me.notes.masters_replaced(event.step)
    elif me.state.from_checkpoint:
        me.masters_at = me.digest_at = me.state.epoch.start_step - 1  # the epoch begins with the model its checkpoint names
    if me.source_missing:
        me.source_missing = False
        me.notes.repair.over()
        me.tell(telemetry.Resynced(me.notes.number, event.step or 0))
    ask_again(me)


def _trained(me: Standing, event: ev.Trained, *, sign: Callable[[bytes], bytes]) -> None:
    speed = event.tokens / event.seconds if event.seconds > 0 else 0.0
    loss = event.loss if math.isfinite(event.loss) else 0.0  # no other number goes into a statement
    me.figures = replace(me.figures, loss=loss, tokens_per_second=speed)
    notes = me.notes
    record = notes.records.get(event.height) if notes is not None else None
    if notes is None or record is None or notes.slot is None:
        return

    record.own_done, record.own_done_at = True, me.now
    me.pace.trained(notes.tag(event.height), now=me.now)
    step, share, size = record.round.step, record.shares[notes.slot], event.payload_bytes
    me.tell(telemetry.StepTrained(notes.number, step, event.loss, event.tokens, event.seconds, size))
    commitment = me.results.commitment(record, share=share, trainer=me.identity.signer, payload_hash=event.payload_hash)
    result = Result(notes.number, event.height, step, share, event.payload_hash, size, commitment, sign(commitment))
    record.add(notes.slot, result)
    payload_checked(me, event.payload_hash, valid=True, tag=notes.tag(event.height))
    me.do(ev.Broadcast(result, notes.tag(event.height)))


def reminded(me: Standing, event: ev.Reminded) -> None:
    """Our training should be as good as done; nothing when it is done, or was not begun, or another goes on."""
    if me.notes is not None and isinstance(me.work, ev.Train) and me.work.tag == event.tag:
        record = me.notes.records.get(me.work.height)
        if record is not None:
            record.nearly_done, record.nearly_done_at = True, me.now


def _payloads_lost(me: Standing, event: ev.PayloadsLost) -> None:
    """They are asked for again; should nobody have them any more, we get the masters."""
    if me.notes is not None:
        for payload_hash in event.payload_hashes:
            me.notes.inbox.lost(payload_hash)


def _work_failed(me: Standing, event: ev.WorkFailed) -> None:
    """What only reads the masters failed for this time; after anything else they cannot be relied on any more."""
    work = event.work
    if isinstance(work, ev.Train):
        _train_failed(me, ev.TrainFailed(work.height, event.reason))
    elif isinstance(work, ev.TakeSnapshot):
        me.tell(telemetry.Problem("error", event.reason))
    elif isinstance(work, ev.Load):
        me.give_up(event.reason)  # nothing can go on without a model
    else:
        if me.notes is not None and me.notes.repair.reason is not None:
            me.tell(telemetry.Problem("warning", event.reason))  # it is known already why we need the others' masters
        resync.masters_doubtful(me, event.reason)


def _train_failed(me: Standing, event: ev.TrainFailed) -> None:
    if me.notes is not None and event.height in me.notes.records:
        me.notes.records[event.height].own_done = True
    me.tell(telemetry.Problem("error", event.reason))


def _applied(me: Standing, event: ev.Applied) -> None:
    record = me.notes.records.get(event.height) if me.notes is not None else None
    if record is not None:
        record.applied = True
        if not record.cut:
            me.masters_at = record.round.step
        accepted, trained = len(record.accepted), len(record.shares)
        me.tell(telemetry.StepApplied(record.epoch, record.round.step, accepted, trained, event.seconds))


def _digested(me: Standing, event: ev.Digested) -> None:
    record = me.notes.records.get(event.height) if me.notes is not None else None
    if me.notes is not None and record is not None and record.digest_asked:
        record.digest = event.digest
        me.notes.judge = True
        if not me.doubtful:
            me.model_digest, me.digest_at = event.digest, me.masters_at


def _epoch_closed(me: Standing, event: ev.EpochClosed) -> None:
    notes, state = me.notes, me.state
    if notes is None or state is None:
        return

    notes.closed = notes.judge = True
    notes.saved = event.saved
    notes.closed_at = me.now
    me.model_digest = notes.digests.ours = event.digest
    me.digest_at = me.masters_at
    notes.digests.note_own(notes.slot, ended=True)
    me.tell(telemetry.EpochDigest(notes.number, notes.last_step(state), event.digest.hex()))
    me.do(ev.Broadcast(ModelDigest(notes.number, True, event.digest), notes.tag(max(notes.newest, 0))))
    if event.saved and me.masters_at is not None:
        me.held[me.masters_at] = event.digest
    if notes.slot in me.healthy and notes.describes(state):
        assert notes.slot is not None
        me.do(ev.Send(EpochDigest(me.identity, notes.number, notes.slot, event.digest)))
    coordinator_updates.follow(me, state)


def _snapshot_taken(me: Standing, event: ev.SnapshotTaken) -> None:
    if me.notes is not None and not resync.changed_unasked(me, event):
        offer = ModelOffer(
            me.notes.number,
            event.step,
            event.manifest_hash,
            event.manifest_bytes,
            event.description_hash,
            event.description_bytes,
        )
        me.do(ev.Broadcast(offer, me.notes.tag(max(me.notes.newest, 0) + coordinator_updates.KEPT_ROUNDS)))
