"""What finished work changes: the model is open, a share is trained, results are applied, the epoch is closed.

Answers to our commands are taken in here too. What comes next is decided by `scheduler`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import coordinator_updates
from psyche_core.client.machine import events as ev
from psyche_core.client.machine.epoch import EpochNotes
from psyche_core.client.machine.peer_messages import payload_checked, retry_requests
from psyche_core.client.machine.replica import checkpoint_upload, resync
from psyche_core.client.machine.state import MachineState
from psyche_core.coordinator.commands import Checkpoint, EpochDigest, Equivocation, WarmupWitness, Witness
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry import events as telemetry
from psyche_core.wire.messages import ModelDigest, ModelOffer, Result, result_hash


def work_done(client: MachineState, event: ev.WorkDone, *, sign: Callable[[bytes], bytes]) -> None:
    """Handle the answer to our piece of work. sign: signs a commitment with our p2p key."""
    client.work = None
    match event:
        case ev.Trained():
            _trained(client, event, sign=sign)
        case ev.Applied():
            _applied(client, event)
        case ev.Digested():
            _digested(client, event)
        case ev.ModelReady():
            _model_ready(client, event)
        case ev.SourceMissing():
            client.source_missing = True
            client.notify(telemetry.Problem("warning", f"{event.reason}; asking the other members"))
        case ev.TrainFailed():
            _train_failed(client, event)
        case ev.EpochClosed():
            _epoch_closed(client, event)
        case ev.SnapshotTaken():
            _snapshot_taken(client, event)
        case ev.ModelFetched():
            resync.model_fetched(client, event)
        case ev.ModelFetchFailed():
            resync.model_fetch_failed(client, event)
        case ev.PayloadsLost():
            _payloads_lost(client, event)
        case ev.WorkFailed():
            _work_failed(client, event)
        case ev.Recomputed():
            _recomputed(client, event.place, event.root)
        case ev.RecomputeFailed():
            _recompute_failed(client, event)
        case ev.SnapshotFailed():
            client.snapshot_offers.failed(event.step)  # already reported, and nobody waits for it
        case _:
            assert_never(event)


def command_answered(client: MachineState, event: ev.CommandAnswered) -> None:
    """The coordinator accepted or refused a command of ours."""
    command, notes = event.command, client.notes
    if notes is None:
        return

    if isinstance(command, Witness) and event.code is None:
        record = notes.records.get(command.statement.height)
        if record is not None:
            client.notify(telemetry.WitnessSent(record.epoch, record.height, record.all_finished(client.healthy)))
    elif isinstance(command, Checkpoint):
        checkpoint_upload.answered(client, command, event.code)
    elif isinstance(command, Equivocation):
        record = notes.records.get(command.height)
        if record is not None and command.epoch == notes.number and command.index in record.evidence:
            record.evidence[command.index].answered = True
    elif isinstance(command, WarmupWitness) and event.code is not None:
        if event.code == "RejoinsExhausted":
            notes.rejoin_refused = True
        elif event.code not in ("InvalidRunState", "DuplicateWitness"):
            notes.ready_sent = False


def _model_ready(client: MachineState, event: ev.ModelReady) -> None:
    client.model_ready = True
    client.model_digest = event.digest
    client.masters_at = client.digest_at = event.step
    client.held |= dict(event.held)
    client.journalled = event.journalled
    client.masters_invalid = False
    client.results.max_payload_bytes = event.max_payload_bytes
    if client.notes is None or client.state is None:
        return

    client.loaded_generation = client.state.generation
    client.notes.digests.ours = event.digest
    client.notes.compare_due = True
    if event.step is not None:
        client.notes.masters_replaced(event.step)
        _compare_start(client, client.notes, client.state)
    elif client.state.from_checkpoint:
        client.masters_at = client.digest_at = (
            client.state.epoch.start_step - 1
        )  # the epoch begins with the model its checkpoint names
    if client.source_missing:
        client.source_missing = False
        if event.step is None or not resync.rejects_fetched(client, client.notes, event.step, digest=event.digest):
            client.notes.resync.end()
            client.notify(telemetry.Resynced(client.notes.number, event.step or 0))
    retry_requests(client)


def _compare_start(client: MachineState, notes: EpochNotes, state: CoordinatorState) -> None:
    """If the epoch began without us, compare the masters from our disk with those that its members reported at its start.

    Our journal may be of a history that the coordinator has forgotten, and the rounds that would tell are no longer stored. Only
    masters with which the epoch starts can be compared. Later ones contain results of this epoch, whose statements are.
    """
    late = not state.epoch.unplayed and notes.slot is not None and notes.describes(state)
    if late and client.masters_at == state.epoch.start_step - 1:
        notes.digests.record_own(notes.slot, ended=False, seed=notes.seed)


def _trained(client: MachineState, event: ev.Trained, *, sign: Callable[[bytes], bytes]) -> None:
    speed = event.tokens / event.seconds if event.seconds > 0 else 0.0
    loss = event.loss if math.isfinite(event.loss) else 0.0  # statements hold finite numbers only
    client.figures = replace(client.figures, loss=loss, tokens_per_second=speed)
    notes = client.notes
    record = notes.records.get(event.height) if notes is not None else None
    if notes is None or record is None or notes.slot is None:
        return

    record.own_done, record.own_done_at = True, client.now
    client.finish_estimator.training_finished(notes.tag(event.height), now=client.now)
    step, share, size = record.round.step, record.shares[notes.slot], event.payload_bytes
    client.notify(telemetry.StepTrained(notes.number, step, event.loss, event.tokens, event.seconds, size))
    covered = result_hash(event.payload_hash, event.roots)
    commitment = client.results.commitment(record, share=share, trainer=client.identity.signer, payload_hash=covered)
    about = (notes.number, event.height, step, record.round.seed)
    result = Result(*about, share, event.payload_hash, size, commitment, sign(commitment), event.roots)
    record.add(notes.slot, result)
    payload_checked(client, event.payload_hash, valid=True, tag=notes.tag(event.height))
    client.emit(act.Broadcast(result, notes.tag(event.height)))


def timer_expired(client: MachineState, event: ev.TimerExpired) -> None:
    """Our training should be almost done; ignored when it is done, was not begun, or another is running."""
    if client.notes is not None and isinstance(client.work, act.Train) and client.work.tag == event.tag:
        record = client.notes.records.get(client.work.height)
        if record is not None:
            record.nearly_done, record.nearly_done_at = True, client.now


def _payloads_lost(client: MachineState, event: ev.PayloadsLost) -> None:
    """They are requested again; if nobody has them any more, we get the masters."""
    if client.notes is not None:
        for payload_hash in event.payload_hashes:
            client.notes.payloads.lost(payload_hash)


def _work_failed(client: MachineState, event: ev.WorkFailed) -> None:
    """After a failure of work that only reads the masters they are still valid; after any other failure they are not."""
    work = event.work
    if isinstance(work, act.Train):
        _train_failed(client, ev.TrainFailed(work.height, event.reason))
    elif isinstance(work, act.Recompute):
        _recompute_failed(client, ev.RecomputeFailed(work.place, event.reason))
    elif isinstance(work, act.TakeSnapshot):
        client.snapshot_offers.failed(work.step)
        client.notify(telemetry.Problem("error", event.reason))
    elif isinstance(work, act.Load):
        client.give_up(event.reason)  # a client cannot continue without a model
    else:
        if client.notes is not None and client.notes.resync.reason is not None:
            client.notify(telemetry.Problem("warning", event.reason))  # the reason why we need the others' masters is already set
        resync.invalidate_masters(client, event.reason)


def _train_failed(client: MachineState, event: ev.TrainFailed) -> None:
    if client.notes is not None and event.height in client.notes.records:
        client.notes.records[event.height].own_done = True
    client.notify(telemetry.Problem("warning" if event.passing else "error", event.reason))


def _recomputed(client: MachineState, place: act.StagePlace, root: bytes | None) -> None:
    if client.notes is not None:
        client.notes.duties.recomputed(place, root)


def _recompute_failed(client: MachineState, event: ev.RecomputeFailed) -> None:
    if event.unusable and client.notes is not None:
        client.notes.duties.unusable(event.place, event.unusable)
        client.notify(telemetry.Problem("warning", event.reason))
        return

    _recomputed(client, event.place, None)
    client.notify(telemetry.Problem("warning", event.reason))


def _applied(client: MachineState, event: ev.Applied) -> None:
    record = client.notes.records.get(event.height) if client.notes is not None else None
    if record is not None:
        record.applied = True
        if not record.unattested:
            client.masters_at = record.round.step
        accepted, trained = len(record.accepted), len(record.shares)
        client.notify(telemetry.StepApplied(record.epoch, record.round.step, accepted, trained, event.seconds))


def _digested(client: MachineState, event: ev.Digested) -> None:
    record = client.notes.records.get(event.height) if client.notes is not None else None
    if client.notes is not None and record is not None and record.digest_asked:
        record.digest = event.digest
        client.notes.compare_due = True
        if not client.masters_invalid:
            client.model_digest, client.digest_at = event.digest, client.masters_at


def _epoch_closed(client: MachineState, event: ev.EpochClosed) -> None:
    notes, state = client.notes, client.state
    if notes is None or state is None:
        return

    notes.closed = notes.compare_due = True
    notes.saved = event.saved
    notes.closed_at = client.now
    client.model_digest = notes.digests.ours = event.digest
    client.digest_at = client.masters_at
    seed = notes.last_seed
    notes.digests.record_own(notes.slot, ended=True, seed=seed)
    client.notify(telemetry.EpochDigest(notes.number, notes.last_step(state), event.digest.hex()))
    client.emit(act.Broadcast(ModelDigest(notes.number, True, event.digest, seed), notes.tag(max(notes.newest, 0))))
    if event.saved and client.masters_at is not None:
        client.held[client.masters_at] = event.digest
    if notes.slot in client.healthy and notes.describes(state):
        assert notes.slot is not None
        client.emit(act.Send(EpochDigest(client.identity, notes.number, notes.slot, event.digest)))
    coordinator_updates.follow(client, state)


def _snapshot_taken(client: MachineState, event: ev.SnapshotTaken) -> None:
    if client.notes is not None and not resync.is_corrupted(client, event):
        offer = ModelOffer(
            client.notes.number,
            event.step,
            client.notes.seed,
            event.manifest_hash,
            event.manifest_bytes,
            event.description_hash,
            event.description_bytes,
        )
        client.notes.own_offer = event.step, event.manifest_hash
        client.emit(act.Broadcast(offer, client.notes.tag(max(client.notes.newest, 0) + coordinator_updates.KEPT_ROUNDS)))
