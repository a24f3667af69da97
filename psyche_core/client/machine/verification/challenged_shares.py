"""Keeps a machine's duties in challenges up to date: what the state asks, and what its surroundings answer."""

from __future__ import annotations

from psyche_core.client.machine import events as ev
from psyche_core.client.machine.actions import Broadcast
from psyche_core.client.machine.epoch import PLAYING, EpochNotes
from psyche_core.client.machine.state import MachineState
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry import events as telemetry
from psyche_core.wire.messages import Opening

KEPT_ROUNDS = 4
"""Rounds for which parts are kept and served: as long as other messages of a round."""

PartEvent = ev.PartReady | ev.PartFailed | ev.PartFetched | ev.PartMissing | ev.PartsChecked


def update(client: MachineState, state: CoordinatorState, notes: EpochNotes) -> None:
    """Do what open challenges ask of us. Runs without challenges have nothing here."""
    duties = notes.duties
    if not state.epoch.challenges and not duties.open:
        return

    duties.follow(state, notes.accepted_result, notes.previous_result, now=client.now)
    if notes.slot is None or state.run_state not in PLAYING:
        return

    tag = notes.tag(notes.newest + KEPT_ROUNDS)
    healthy = notes.slot in client.healthy
    due = duties.actions(
        state, notes.slot, identity=client.identity, clients=notes.clients, tag=tag, now=client.now, healthy=healthy
    )  # fmt: skip
    client.emit(*due)


def part_handled(client: MachineState, event: PartEvent) -> None:
    """An answer about a part."""
    notes = client.notes
    if notes is None or notes.slot is None:
        return

    match event:
        case ev.PartReady(place, payload_hash, payload_bytes):
            record = notes.records.get(place.since)
            if record is not None and notes.duties.shown(place, notes.slot, payload_hash, payload_bytes):
                about = (place.about, place.trainer, payload_hash, payload_bytes)
                opening = Opening(notes.number, place.since, record.round.seed, *about)
                client.emit(Broadcast(opening, notes.tag(place.since)))
        case ev.PartFailed():
            client.notify(telemetry.Problem("warning", event.reason))
        case ev.PartFetched():
            notes.duties.fetched(event.payload_hash)
        case ev.PartMissing():
            notes.duties.missing(event.payload_hash, now=client.now)
        case ev.PartsChecked():
            notes.duties.checked(event.place, event.judge, event.word)
