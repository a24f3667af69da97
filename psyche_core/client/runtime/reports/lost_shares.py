"""Says whose shares of a step were not accepted: the machine reports only how many. Pure."""

from __future__ import annotations

from dataclasses import replace

from psyche_core.client.machine.epoch import EpochNotes
from psyche_core.telemetry.events import StepApplied


def with_lost_shares(event: StepApplied, notes: EpochNotes | None) -> StepApplied:
    """Return the event with the members whose share was not accepted, and whether ours is among them.

    Unchanged if every share was accepted, and if none was: then nobody attested to the round, which says nothing of a member.
    notes: the machine's, as they are when it reports the step.
    """
    if notes is None or not 0 < event.accepted < event.trained or notes.number != event.epoch:
        return event

    for record in notes.records.values():
        if record.round.step == event.step and len(record.shares) == event.trained:
            lost = sorted(record.shares.keys() - record.accepted)
            names = tuple(notes.clients[slot].short for slot in lost[: StepApplied.MAX_LOST])
            return replace(event, lost=names, ours_lost=notes.slot in lost)
    return event
