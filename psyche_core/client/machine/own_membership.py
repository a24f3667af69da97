"""Tells people about our own membership of the epoch: that it waits for the next one, was dropped, or is back."""

from __future__ import annotations

from psyche_core.client.machine.epoch import ENTERABLE, EpochNotes
from psyche_core.client.machine.state import MachineState
from psyche_core.coordinator.membership.missed_duties import MAX_MISSED
from psyche_core.coordinator.state import MAX_REJOINS, Client, CoordinatorState
from psyche_core.telemetry import events as telemetry
from psyche_core.types import ClientState


def report_own_membership(client: MachineState, previous: CoordinatorState | None, state: CoordinatorState) -> None:
    """Report what a newer state says about us. Decides nothing."""
    notes = client.notes
    if notes is None or not notes.describes(state) or client.leaving is not None:
        return

    if notes.slot is None:
        if client.pending and not notes.waits_told and state.run_state in ENTERABLE:
            notes.waits_told = True
            client.tell(telemetry.WaitsForEpoch(notes.number))
        return

    if previous is None or not notes.describes(previous):
        return

    was, now = previous.epoch.clients[notes.slot].state, state.epoch.clients[notes.slot]
    if was is ClientState.Healthy and now.state in (ClientState.Dropped, ClientState.Withdrawn):
        returns = state.run_state in ENTERABLE and now.rejoins < MAX_REJOINS and not notes.rejoin_refused
        client.tell(telemetry.Dropped(notes.number, now.exited_height, _why(state, notes, notes.slot, now), returns=returns))
    elif was is not ClientState.Healthy and now.state is ClientState.Healthy:
        client.tell(telemetry.CameBack(notes.number))


def _why(state: CoordinatorState, notes: EpochNotes, slot: int, ours: Client) -> str:
    """The likely reason, see `telemetry.Dropped`."""
    if ours.state is ClientState.Withdrawn:
        return "lost"
    if slot not in state.epoch.ready:
        return "unready"
    if ours.missed >= MAX_MISSED:
        return "unstated"

    judged = notes.records.get(ours.exited_height - 2)  # the round that a health check is about
    return "late" if judged is not None and judged.own_started else "silent"
