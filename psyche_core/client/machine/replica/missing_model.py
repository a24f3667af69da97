"""Tell the coordinator in warmup that we cannot begin with the epoch's model, and which earlier signed one we have (F18)."""

from __future__ import annotations

from psyche_core.client.machine.actions import Send
from psyche_core.client.machine.epoch import EpochNotes
from psyche_core.client.machine.rounds.round import NO_DIGEST
from psyche_core.client.machine.state import MachineState
from psyche_core.coordinator.commands import WarmupWitness
from psyche_core.coordinator.history import held_digest, signed_digests
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry import events as telemetry

_NOBODY_READY = 1 / 2
_SOMEBODY_READY = 3 / 4
"""Fraction of warmup_time after which we report that we cannot get the model."""


def report_missing_model(client: MachineState, state: CoordinatorState, notes: EpochNotes, *, contested: bool) -> None:
    """Tell the coordinator that we cannot get the model, and which earlier signed step we have (protocol F18).

    contested: members offer the model, and nobody can tell which one is right.
    """
    if notes.slot is None or notes.slot not in client.healthy:
        return
    if notes.missing_reported_at is not None and client.now - notes.missing_reported_at <= client.timeouts.answer:
        return
    # Members that have the model may still be loading it; while one reports that it has it, offers may come.
    if client.now - notes.since < state.config.warmup_time * (_SOMEBODY_READY if state.epoch.ready else _NOBODY_READY):
        return

    start = state.epoch.start_step - 1
    in_memory = (
        {} if client.masters_at is None or client.masters_at != client.digest_at else {client.masters_at: client.model_digest}
    )
    ours = client.held | in_memory
    held = {step: digest for step, digest in signed_digests(state).items() if step < start and ours.get(step) == digest}
    newest = max(held, default=None)
    if notes.missing_reported_at is None:
        best = (
            "this client's disk holds no model that members signed"
            if newest is None
            else f"the newest signed model on this client's disk is the one after step {newest}"
        )
        last = (
            "if nobody has one, it continues from its stored checkpoint"
            if state.config.restart_from_checkpoint
            else "if nobody has one, it is paused, and a member whose disk has the model can still start its client"
        )
        back = f"the run goes back to the newest signed model that a member reports; {last}"
        why = f"no member that is here has the model after step {start}"
        asked = "once most members here have reported the same, those who have joined meanwhile are asked"
        then = f"{asked}; if they lack it, too, {back}"
        if contested:
            why = f"members offer different models after step {start} again, so it is given up"
            then = back
        client.notify(telemetry.Problem("warning", f"{why}; {best}; {then}"))
    notes.missing_reported_at = client.now
    report = NO_DIGEST if newest is None else held_digest(held[newest])
    client.emit(Send(WarmupWitness(client.identity, notes.number, notes.slot, report)))
