"""Store the model after an epoch and tell the coordinator where it is (protocol section 5, F9).

- Only the elected checkpointer stores: copies of others would only cost upload. A checkpointer that cannot store (no store,
  nothing saved, storing failed) passes the duty on at once.
- It first waits for other members' digests: a replica that differs must not become everybody's next start. If none come, it waits
  for a moment and then stores.
- It tells the place while checkpoints are accepted, after an epoch's rounds, once a quorum has signed the epoch's end or the run
  has finished. If it is later, only people are told, unless the owner listed this member as a checkpointer.

Files and stores are not touched here: the runtime carries out StoreModel.
"""

from __future__ import annotations

from psyche_core.client.machine.actions import Send, StoreModel
from psyche_core.client.machine.epoch import EpochNotes, epoch_key
from psyche_core.client.machine.events import ModelStored, StoreFailed
from psyche_core.client.machine.state import MachineState, Upload
from psyche_core.config.run_config import Choice
from psyche_core.coordinator.checkpoints import OPEN, checkpointer_slot, is_checkpointer, is_end_signed
from psyche_core.coordinator.commands import Checkpoint
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry import events as telemetry

MAX_REPORTS = 3
"""How often a location is sent to a coordinator that does not answer."""


def update(client: MachineState, state: CoordinatorState) -> None:
    """Store the model, report its location or pass the duty on, as this state requires."""
    notes, storage = client.notes, client.upload
    if storage is not None and storage.location is not None and not storage.closed:
        _report(client, state, storage)
    if state.run_state not in OPEN or client.leaving is not None or notes is None or notes.slot is None:
        return

    if notes.closed and notes.describes(state) and checkpointer_slot(state) == notes.slot:
        _store_or_pass_on(client, state, notes, storage)


def _store_or_pass_on(client: MachineState, state: CoordinatorState, notes: EpochNotes, storage: Upload | None) -> None:
    if storage is not None and storage.key == notes.key:
        if storage.failed:
            _pass_on(client, notes)
    elif not client.can_store or not notes.saved:
        _pass_on(client, notes)
    elif (
        notes.digests.matching_count(ended=True) * 2 > len(state.healthy_slots)
        or client.now - notes.closed_at > client.timeouts.offers
    ):
        step = notes.last_step(state)
        client.upload = Upload(notes.key, step)
        client.emit(StoreModel(notes.number, step))


def _pass_on(client: MachineState, notes: EpochNotes) -> None:
    if notes.passed_on is None or client.now - notes.passed_on > client.timeouts.answer:
        notes.passed_on = client.now
        client.emit(Send(Checkpoint(client.identity, None)))


def _report(client: MachineState, state: CoordinatorState, storage: Upload) -> None:
    """Send the model's location to the coordinator until it answers; if it is too late, tell only people."""
    timely = state.run_state in OPEN and storage.key == epoch_key(state)
    if not timely and not _listed(client, state):  # a run must never go back to an older model
        storage.closed = True
        client.notify(
            telemetry.Problem(
                "warning",
                f"the model of step {storage.step} was stored, or signed by enough members, after the others had gone on, so the "
                "run does not refer to it; a longer cooldown_time gives time for both",
            )
        )
    elif _accepts(client, state) and (storage.reported_at is None or client.now - storage.reported_at > client.timeouts.answer):
        if storage.reports >= MAX_REPORTS or not is_checkpointer(state, client.identity):
            storage.closed = True  # the coordinator no longer answers: the run has ended, or we are not accepted
            return

        storage.reported_at = client.now
        storage.reports += 1
        client.emit(Send(Checkpoint(client.identity, storage.location, storage.step)))


def _accepts(client: MachineState, state: CoordinatorState) -> bool:
    """Whether the coordinator takes our location now: not before members have signed the end, while the run goes on."""
    return state.run_state in OPEN and (is_end_signed(state) or _listed(client, state))


def _listed(client: MachineState, state: CoordinatorState) -> bool:
    return client.identity.signer.hex() in state.config.checkpointers


def model_stored(client: MachineState, event: ModelStored) -> None:
    """The model is in the store."""
    if client.upload is not None and client.upload.step == event.step:
        client.upload.location = event.location


def store_failed(client: MachineState, event: StoreFailed) -> None:
    """The model is not in the store; it is another member's turn."""
    client.notify(telemetry.Problem("error", event.reason))
    if client.upload is not None and client.upload.step == event.step:
        client.upload.failed = client.upload.closed = True


def answered(client: MachineState, command: Checkpoint, code: str | None) -> None:
    """The coordinator accepted or refused the model's location."""
    storage = client.upload
    if storage is None or command.location is None or command.location != storage.location:
        return

    storage.closed = True
    place = Choice.parse(storage.location).describe()
    if code is None:
        client.notify(telemetry.CheckpointStored(storage.step, place))
    else:
        client.notify(telemetry.Problem("warning", f"the coordinator does not refer to the model stored at {place}: {code}"))


def busy(client: MachineState) -> bool:
    """Whether leaving now would waste an upload in progress."""
    return client.upload is not None and not client.upload.closed
