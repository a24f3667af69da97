"""Storing the model after an epoch, and telling the coordinator where it is (protocol section 5, F9).

Decided here: only who has the duty stores, the others' copies would cost their lines for nothing; who cannot (no store, nothing
saved, storing failed) passes the duty on at once. Before the duty is taken the others are heard, for a replica that went astray
must not become everybody's next start; who hears nobody waits for a moment and stores. What is stored is told while checkpoints
are taken, after an epoch's rounds; what was stored too late is told to people only, unless the owner listed us. Refuses to touch
files or stores: StoreModel does.
"""

from __future__ import annotations

from psyche_core.client.machine.epoch import EpochNotes, epoch_key
from psyche_core.client.machine.events import ModelStored, Send, StoreFailed, StoreModel
from psyche_core.client.machine.state import Standing, Storage
from psyche_core.config.run_config import Choice
from psyche_core.coordinator.checkpoints import OPEN, checkpointer_slot, is_checkpointer
from psyche_core.coordinator.commands import Checkpoint
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry import events as telemetry

MAX_TELLINGS = 3
"""How often a place is told to a coordinator that does not answer."""


def consider(me: Standing, state: CoordinatorState) -> None:
    """Store, tell or pass on, whatever is due in this state."""
    notes, storage = me.notes, me.storage
    if storage is not None and storage.location is not None and not storage.over:
        _tell(me, state, storage)
    if state.run_state not in OPEN or me.leaving is not None or notes is None or notes.slot is None:
        return

    if notes.closed and notes.describes(state) and checkpointer_slot(state) == notes.slot:
        _do_duty(me, state, notes, storage)


def _do_duty(me: Standing, state: CoordinatorState, notes: EpochNotes, storage: Storage | None) -> None:
    if storage is not None and storage.key == notes.key:
        if storage.failed:
            _pass_on(me, notes)
    elif not me.can_store or not notes.saved:
        _pass_on(me, notes)
    elif notes.digests.likeminded(ended=True) * 2 > len(state.healthy_slots) or me.now - notes.closed_at > me.patience.offers:
        step = notes.last_step(state)
        me.storage = Storage(notes.key, step)
        me.do(StoreModel(notes.number, step))


def _pass_on(me: Standing, notes: EpochNotes) -> None:
    if notes.passed_on is None or me.now - notes.passed_on > me.patience.answer:
        notes.passed_on = me.now
        me.do(Send(Checkpoint(me.identity, None)))


def _tell(me: Standing, state: CoordinatorState, storage: Storage) -> None:
    """Tell the coordinator where the model is, until it answers, or people that it is too late."""
    timely = state.run_state in OPEN and storage.key == epoch_key(state)
    if not timely and not _listed(me, state):  # a run must never go back to an older model
        storage.over = True
        me.tell(
            telemetry.Problem(
                "warning",
                f"the model of step {storage.step} was stored after the others had gone on, so the run does not refer to it; "
                "a longer cooldown_time gives time to store",
            )
        )
    elif state.run_state in OPEN and (storage.told_at is None or me.now - storage.told_at > me.patience.answer):
        if storage.told >= MAX_TELLINGS or not is_checkpointer(state, me.identity):
            storage.over = True  # nobody listens any more, as after the end of a run, or to us
            return

        storage.told_at = me.now
        storage.told += 1
        me.do(Send(Checkpoint(me.identity, storage.location)))


def _listed(me: Standing, state: CoordinatorState) -> bool:
    return me.identity.signer.hex() in state.config.checkpointers


def model_stored(me: Standing, event: ModelStored) -> None:
    """The model is in the store."""
    if me.storage is not None and me.storage.step == event.step:
        me.storage.location = event.location


def store_failed(me: Standing, event: StoreFailed) -> None:
    """The model is not in the store; somebody else's turn."""
    me.tell(telemetry.Problem("error", event.reason))
    if me.storage is not None and me.storage.step == event.step:
        me.storage.failed = me.storage.over = True


def answered(me: Standing, command: Checkpoint, code: str | None) -> None:
    """The coordinator took or refused what we said about the model's place."""
    storage = me.storage
    if storage is None or command.location is None or command.location != storage.location:
        return

    storage.over = True
    if code is None:
        me.tell(telemetry.CheckpointStored(storage.step, _shown(storage.location)))
    else:
        me.tell(
            telemetry.Problem(
                "warning", f"the coordinator does not refer to the model stored at {_shown(storage.location)}: {code}"
            )
        )


def busy(me: Standing) -> bool:
    """Whether leaving now would waste what is being stored."""
    return me.storage is not None and not me.storage.over


def _shown(location: object) -> str:
    """A location for people: `Hub owner/name 0a1b…`."""
    choice = Choice.parse(location)
    return " ".join([choice.name, *map(str, (choice.settings or {}).values())])
