"""A member is told in its own log when it is not in the epoch that is played, why, and from when on it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.coordinator.membership.missed_duties import MAX_MISSED
from psyche_core.coordinator.state import Client, CoordinatorState
from psyche_core.telemetry import events as telemetry
from psyche_core.types import ClientState, RunState
from stage import Member, Stage, with_a_slow_member_dropped

OWN_PLACE = (telemetry.WaitsForEpoch, telemetry.Dropped, telemetry.CameBack)


def own_membership(member: Member) -> list[telemetry.Event]:
    return [event for event in member.told if isinstance(event, OWN_PLACE)]


def test_who_joins_in_the_middle_of_an_epoch_is_told_once_that_it_takes_part_from_the_next_on() -> None:
    world = Stage(3, late=1, total_steps=12, rounds_per_epoch=6)
    world.run(until=lambda: world.state.progress.step == 3)
    late = world.arrive()
    world.run()

    assert own_membership(late) == [telemetry.WaitsForEpoch(0)]
    assert not any(own_membership(member) for member in world.members if member is not late)
    assert any(isinstance(event, telemetry.StepTrained) for event in late.told), "it took part from then on"


def test_who_is_slower_than_all_others_is_told_that_it_was_dropped_why_and_that_it_is_back() -> None:
    world, slow = with_a_slow_member_dropped()

    dropped, back = own_membership(slow)
    assert isinstance(dropped, telemetry.Dropped)
    assert (dropped.epoch, dropped.why, dropped.returns) == (0, "late", True)
    assert dropped.height == world.state.epoch.clients[world.epoch_clients[0].index(slow.identity)].exited_height
    assert back == telemetry.CameBack(0)
    assert not any(own_membership(member) for member in world.members if member is not slow)


def test_who_is_asked_to_leave_is_not_told_that_it_was_dropped() -> None:
    world = Stage(4, total_steps=12, rounds_per_epoch=6)
    world.run(until=lambda: world.state.progress.step == 3)
    world.members[0].ask_to_leave()
    world.run()
    assert not any(own_membership(member) for member in world.members)


def told_after(change: dict[str, object], *, ready: bool = True, phase: RunState | None = None) -> telemetry.Dropped:
    """What a member is told when a state comes in which its slot has changed so."""
    world = Stage(3, total_steps=12, rounds_per_epoch=12)
    member = world.members[1]
    world.run(until=lambda: world.state.progress.step == 4 and member.machine.state is world.state)
    state = world.state
    slot = state.slot_of(member.identity)
    assert slot is not None
    clients: list[Client] = list(state.epoch.clients)
    clients[slot] = replace(clients[slot], **change)  # type: ignore[arg-type]
    slots = state.epoch.ready if ready else tuple(other for other in state.epoch.ready if other != slot)
    newer: CoordinatorState = replace(state, epoch=replace(state.epoch, clients=tuple(clients), ready=slots))
    newer = newer if phase is None else replace(newer, run_state=phase)
    actions = member.machine.handle(ev.StateSeen(newer), world.now)
    (told,) = [action.event for action in actions if isinstance(action, act.Notify) and isinstance(action.event, OWN_PLACE)]
    assert isinstance(told, telemetry.Dropped)
    return told


@pytest.mark.parametrize(
    ("change", "ready", "why"),
    [
        ({"state": ClientState.Withdrawn}, True, "lost"),
        ({"state": ClientState.Dropped}, False, "unready"),
        ({"state": ClientState.Dropped, "missed": MAX_MISSED, "exited_height": 3}, True, "unstated"),
        ({"state": ClientState.Dropped, "exited_height": 3}, True, "late"),
        ({"state": ClientState.Dropped, "exited_height": 99}, True, "silent"),
    ],
)
def test_the_likely_reason_is_told(change: dict[str, object], ready: bool, why: str) -> None:
    told = told_after(change, ready=ready)
    assert (told.why, told.returns) == (why, True)


@pytest.mark.parametrize(
    ("change", "phase"),
    [({"state": ClientState.Dropped, "rejoins": 3}, None), ({"state": ClientState.Dropped}, RunState.Cooldown)],
)
def test_who_cannot_come_back_in_this_epoch_is_told_of_the_next(change: dict[str, object], phase: RunState | None) -> None:
    assert not told_after(change, phase=phase).returns
