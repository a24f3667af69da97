"""Check that our masters equal the others', and get theirs when ours cannot be used (protocol section 5).

Digests decide at both ends of an epoch and in every settled round. A member whose replica differs, or that cannot catch up with
what it knows, asks the other members for their masters and does not train until it has them. It withdraws, with a reason, only
when that fails several times or no model has a majority.
"""

from __future__ import annotations

from psyche_core.client.machine import scheduler
from psyche_core.client.machine.actions import Broadcast, FetchModel, Load
from psyche_core.client.machine.epoch import EpochNotes, masters_due
from psyche_core.client.machine.events import ModelFetched, ModelFetchFailed, SnapshotTaken
from psyche_core.client.machine.replica import contested_model, missing_model
from psyche_core.client.machine.replica.digests import backfill_digests, diverged_step
from psyche_core.client.machine.rounds.round import NO_DIGEST
from psyche_core.client.machine.state import MachineState
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry import events as telemetry
from psyche_core.types import RunState
from psyche_core.wire.messages import ModelWanted


def check_masters(client: MachineState, state: CoordinatorState, notes: EpochNotes) -> None:
    """Check whether our masters can be used or brought up to date; if not, announce which masters we need."""
    repair = notes.resync
    contested_model.record_contested(client, state, notes)
    if notes.compare_due and not repair.diverged:
        notes.compare_due = False
        _compare_digests(client, state, notes)
    if not repair.diverged:
        reason = scheduler.blocking_reason(state, notes, masters_at=client.masters_at, now=client.now, timeouts=client.timeouts)
        if reason is None:
            if repair.reason is not None:
                repair.end()
            return

        due = masters_due(state)
        if client.masters_at == due == client.digest_at and scheduler.differs_from_signed(state, due, client.model_digest):
            repair.reject_last()
        if _reload_from_disk(client, state, notes):
            return

        _begin_resync(client, notes, reason)
    if repair.exhausted and not isinstance(client.work, FetchModel):
        why = "" if repair.failure is None else f": {repair.failure}"
        helps = "start the client again; if it ends so again, test disk and memory and move its checkpoints away"
        client.give_up(f"{repair.reason}, and what the others offered did not help{why}; {helps}")
        return

    due = masters_due(state)
    # A fetch may take many rounds; a request for each of them would use up what we may request.
    if not isinstance(client.work, FetchModel) and repair.register_request(due, client.now):
        client.emit(Broadcast(ModelWanted(notes.number, due, notes.seed), notes.tag(max(notes.newest, 0))))
    # What could not be fetched during the run may be available at its end.
    waited = client.now - (repair.asked_at if state.run_state is RunState.Finished else repair.since)
    no_usable_offer = (
        not repair.has_untried_offers(client.now) or min(waited, client.now - repair.failed_at) > client.timeouts.payload
    )
    no_usable_offer = no_usable_offer or contested_model.given_up(client, state, notes)
    if repair.contested and not repair.contested_notified:
        repair.contested_notified = True
        contested_model.notify(client, state, step=due, offering=contested_model.most_votes(state, notes, due), taken=False)
    if waited > scheduler.offers_timeout(state, client.timeouts) and client.work is None and no_usable_offer:
        _without_offers(client, state, notes, waited=waited)


def _without_offers(client: MachineState, state: CoordinatorState, notes: EpochNotes, *, waited: float) -> None:
    """Nobody offers what we need. At an epoch's start we report what we hold instead; at the run's end nobody waits."""
    if state.run_state is RunState.Finished:
        client.stop(
            "the run finished, and nobody was left who could give this client the final model; "
            "ask the run's owner where it is stored",
            success=False,
        )
    elif notes.resync.diverged:
        if waited > client.timeouts.payload:
            client.give_up(f"{notes.resync.reason}, and no model has a majority; start the client again later")
    elif state.run_state is RunState.Warmup and state.from_checkpoint:
        _load_stored(client, state, notes)
    elif state.run_state is RunState.Warmup:
        missing_model.report_missing_model(client, state, notes, contested=contested_model.given_up(client, state, notes))


def _load_stored(client: MachineState, state: CoordinatorState, notes: EpochNotes) -> None:
    """Load the stored checkpoint that the run goes on with, once an epoch. If it is a wrong one, only the owner can help."""
    if not notes.loaded_stored:
        notes.loaded_stored = True
        client.model_ready, client.masters_at = False, None
        client.start(Load(state, fresh=True))
    elif not notes.stored_notified:
        notes.stored_notified = True
        problem = (
            f"the stored checkpoint is not the model after step {state.epoch.start_step - 1} that the run's members signed; "
            "the run's owner has to name another checkpoint (psyche server run … --checkpoint URL, or on Solana "
            f"psyche run-manager update-config --run-id {client.run_id} --config-path FILE)"
        )
        client.notify(telemetry.Problem("error", problem))


def _reload_from_disk(client: MachineState, state: CoordinatorState, notes: EpochNotes) -> bool:
    """Load the model the epoch starts with if our disk has it as the end of an earlier epoch; once an epoch.

    If the run has gone back since we last loaded, we have not looked at all yet. Also, a journal may hold results that were
    undecided when we last read it.
    """
    start = state.epoch.start_step - 1
    if notes.reloaded or client.work is not None or state.run_state is not RunState.Warmup or client.masters_at == start:
        return False
    known = any(end.step == start and end.digest == client.held.get(start) for end in state.ends)
    behind = client.journalled and (client.masters_at is None or client.masters_at < start)
    if not (known or behind) and client.loaded_generation == state.generation:
        return False

    notes.reloaded = True
    client.model_ready, client.masters_at = False, None
    client.start(Load(state))
    return True


def model_fetched(client: MachineState, event: ModelFetched) -> None:
    """Our masters are now the others'."""
    notes = client.notes
    client.masters_at = client.digest_at = event.step
    client.masters_invalid = False
    client.model_digest = event.digest
    if notes is None:
        return

    if rejects_fetched(client, notes, event.step, digest=event.digest):
        return

    contested_model.warn_of_few_offers(client, notes, event.step)
    notes.digests.ours = event.digest
    notes.digests.clear_own()
    notes.masters_replaced(event.step)
    notes.ready_sent = notes.closed = False
    notes.resync.end()
    client.notify(telemetry.Resynced(notes.number, event.step))


def rejects_fetched(client: MachineState, notes: EpochNotes, step: int, *, digest: bytes) -> bool:
    """Whether the masters that were just fetched are not the signed ones; then they are not used.

    In the middle of an epoch results would be applied to them before any digest is compared.
    """
    if client.state is None or not scheduler.differs_from_signed(client.state, step, digest):
        return False

    notes.resync.reject_last()
    client.masters_at = client.digest_at = None
    problem = f"the model after step {step} that was offered is not the one that the run's members signed"
    client.notify(telemetry.Problem("warning", f"{problem}; asking the other members again"))
    return True


def is_corrupted(client: MachineState, event: SnapshotTaken) -> bool:
    """Detect silent memory corruption: our masters, about to be offered, have another digest than before at the same step.

    If so, they are not offered, and a resync begins. Returns False if either digest is unknown. No other check finds this:
    between two epochs nothing is compared, and a joiner cannot tell which member is right.
    """
    notes = client.notes
    unknown = notes is None or client.digest_at != event.step or event.digest == NO_DIGEST
    if notes is None or unknown or event.digest == client.model_digest:
        return False

    notes.snapshot_requests.offered_at.pop(event.step, None)
    notes.resync.matching, notes.resync.differing = notes.digests.matching_and_differing(client.model_digest)
    _begin_resync(client, notes, "this client's model has changed by itself, which memory that fails does", diverged=True)
    return True


def model_fetch_failed(client: MachineState, event: ModelFetchFailed) -> None:
    """Our masters are unchanged; that manifest may be tried again after a pause."""
    client.notify(telemetry.Problem("warning", event.reason))
    if client.notes is not None:
        client.notes.resync.failure = event.reason
        client.notes.resync.fetch_failed(client.now, pause=client.timeouts.answer)


def invalidate_masters(client: MachineState, reason: str) -> None:
    """Work on our masters failed, so their content is unknown: get the others', as with a differing replica.

    Attempts per epoch are bounded as always: a client whose attempts all fail gives up with this reason.
    """
    client.masters_at = client.digest_at = None
    client.masters_invalid = True
    if client.notes is None:
        client.give_up(reason)
        return

    if client.notes.resync.last_tried is not None:
        client.notes.resync.fetch_failed(client.now, pause=client.timeouts.answer)
        client.notes.resync.last_tried = None  # the manifest may be right: do not reject it for a local failure
    _begin_resync(client, client.notes, reason, diverged=True)


def _compare_digests(client: MachineState, state: CoordinatorState, notes: EpochNotes) -> None:
    """Compare our replica with the others', at an epoch's ends and in each settled round."""
    for peer, theirs in notes.digests.disagreements():
        name = notes.clients[peer].short
        client.notify(telemetry.ReplicasDiffer(notes.number, notes.digests.ours.hex(), theirs.hex(), name))
    if notes.digests.outvoted(len(client.members)):
        _begin_resync(client, notes, "this client's model differs from that of most members", diverged=True)
        return

    records = notes.records.values()
    if (
        client.masters_at is not None
        and client.digest_at == client.masters_at
        and not client.masters_invalid
        and notes.describes(state)
    ):
        start = state.epoch.start_step - 1
        backfill_digests(records, client.model_digest, step=client.masters_at, start=start, newest=notes.newest)
    step = diverged_step(records)
    if step is not None:
        _begin_resync(client, notes, f"this client's model differs from the witnesses' at step {step}", diverged=True)


def _begin_resync(client: MachineState, notes: EpochNotes, reason: str, *, diverged: bool = False) -> None:
    """Our masters cannot be used as they are."""
    if notes.resync.begin(reason, diverged=diverged):
        client.notify(telemetry.Problem("warning", f"{reason}; asking the other members for their model"))
        if diverged:
            notes.digests.clear_own()
