"""A member that cannot get the epoch's model says only what its reader can still do about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psyche_core.client.machine.actions import Notify
from psyche_core.client.machine.epoch import EpochNotes, epoch_key
from psyche_core.client.machine.machine import ClientMachine
from psyche_core.client.machine.replica.missing_model import report_missing_model
from psyche_core.coordinator.state import Client
from psyche_core.simulator.members.keys import RUN_ID, identity_of
from psyche_core.telemetry.events import Problem
from psyche_core.testing.backend import small_state
from psyche_core.types import ClientState, RunState


@pytest.mark.parametrize("owner_decides", [True, False], ids=["the owner decides", "the run begins again by itself"])
def test_what_is_said_of_a_missing_model_can_be_followed(*, owner_decides: bool) -> None:
    """The warmup may end in the same second, so nobody can be asked to start a client before its end."""
    machine = ClientMachine(identity_of(0), RUN_ID, sign=lambda _: bytes(64))
    client = machine._state
    state = small_state()
    members = tuple(Client(identity_of(slot), ClientState.Healthy) for slot in range(3))
    config = state.config.model_copy(update={"restart_from_checkpoint": not owner_decides})
    epoch = replace(state.epoch, clients=members, start_step=9)
    client.state = state = replace(state, config=config, run_state=RunState.Warmup, epoch=epoch)
    client.now, client.healthy = 1000.0, frozenset((0, 1, 2))
    notes = EpochNotes(epoch_key(state), 1, tuple(member.id for member in members), 0, 0.0, opened_at=-1)
    report_missing_model(client, state, notes, contested=False)
    last = (
        "it is paused, and a member whose disk has the model can still start its client"
        if owner_decides
        else "it continues from its stored checkpoint"
    )
    assert [action.event for action in client.actions if isinstance(action, Notify)] == [
        Problem(
            "warning",
            "no member that is here has the model after step 8; this client's disk holds no model that members signed; once "
            "most members here have reported the same, those who have joined meanwhile are asked; if they lack it, too, the run "
            f"goes back to the newest signed model that a member reports; if nobody has one, {last}",
        )
    ]
