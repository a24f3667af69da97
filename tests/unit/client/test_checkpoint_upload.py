"""Who stores an epoch's model, and what the coordinator hears of it."""

from __future__ import annotations

from typing import TypeVar

import pytest

from psyche_core.config.run_config import Choice
from psyche_core.coordinator.checkpoints import checkpointer_slots
from psyche_core.coordinator.commands import Checkpoint, Withdraw
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry import events as telemetry
from psyche_core.types import RunState
from stage import Member, Stage


def duty_order(world: Stage, state: CoordinatorState) -> list[Member]:
    by_signer = {member.identity.p2p: member for member in world.members}
    return [by_signer[state.epoch.clients[slot].id.signer] for slot in checkpointer_slots(state)]


def until_cooldown(world: Stage) -> list[Member]:
    """Play to the cooldown of the first epoch; the order in which its members have the duty."""
    world.run(until=lambda: world.state.run_state is RunState.Cooldown)
    return duty_order(world, world.state)


def location(world: Stage) -> Choice:
    return world.state.model.LLM.checkpoint


def place(member: Member, step: int) -> Choice:
    return Choice("P2P", {"repo_id": f"{member.name}-step{step}"})


Told = TypeVar("Told", bound=telemetry.Event)


def told(member: Member, kind: type[Told]) -> list[Told]:
    return [event for event in member.told if isinstance(event, kind)]


def test_the_elected_member_stores_and_the_run_refers_to_it_before_the_next_warmup() -> None:
    world = Stage(4, stores=range(4), total_steps=6, cooldown_time=2)
    first = until_cooldown(world)[0]
    world.run(until=lambda: world.state.run_state is RunState.WaitingForMembers)
    assert world.stores_begun == [(first.name, 3)], "one member stores, the others save their lines"
    assert location(world) == place(first, 3)
    world.run()
    assert len(world.stores_begun) == 2
    steps = [event.step for member in world.members for event in told(member, telemetry.CheckpointStored)]
    assert sorted(steps) == [3, 6]


def test_the_reference_moves_after_rounds_only() -> None:
    world = Stage(3, stores=range(3), total_steps=3, cooldown_time=2)
    before = location(world)
    world.run(until=lambda: world.state.run_state is RunState.Cooldown)
    assert location(world) == before
    world.run()
    assert location(world).settings != before.settings


def test_a_failed_storing_is_taken_over_by_the_next() -> None:
    world = Stage(4, stores=range(4), total_steps=3, cooldown_time=4)
    order: list[Member] = []
    world.store_breaks = lambda member: member in order[:2]
    order += until_cooldown(world)
    world.run()
    assert [name for name, _ in world.stores_begun] == [member.name for member in order[:3]]
    assert location(world).settings == place(order[2], 3).settings
    for member in order[:2]:
        assert any("full" in str(problem) for problem in told(member, telemetry.Problem))


def test_members_without_a_store_pass_the_duty_on() -> None:
    world = Stage(4, stores=(2,), total_steps=3, cooldown_time=4)
    order = until_cooldown(world)
    world.run()
    assert world.stores_begun == [("client-2", 3)]
    assert location(world).settings == {"repo_id": "client-2-step3"}
    before = order[: order.index(world.members[2])]
    assert len(world.state.epoch.ceded) == len(before)


def test_where_nobody_has_a_store_the_duty_goes_round_once() -> None:
    world = Stage(3, total_steps=3, cooldown_time=4)
    before = location(world).settings
    world.run()
    assert location(world).settings == before
    assert world.state.epoch.ceded == (0, 1, 2)
    assert not [command for command, _ in world.refused if isinstance(command, Checkpoint)]


def test_a_member_that_leaves_while_storing_is_followed_by_the_next() -> None:
    world = Stage(4, stores=range(4), total_steps=6, cooldown_time=6)
    world.store_seconds = 2.0
    order = until_cooldown(world)
    world.run(until=lambda: bool(world.stores_begun))
    world.kill(order[0])
    world.server.apply(_withdraw(order[0]))
    world.run(until=lambda: world.state.run_state is RunState.WaitingForMembers)
    assert location(world) == place(order[1], 3)


def _withdraw(member: Member) -> Withdraw:
    return Withdraw(member.identity)


def test_what_is_stored_too_late_is_told_to_people_and_not_to_the_coordinator() -> None:
    world = Stage(2, stores=range(2), total_steps=12, cooldown_time=1)
    world.store_seconds = 3.5
    first = until_cooldown(world)[0]
    world.run(until=lambda: world.state.run_state is RunState.Cooldown and world.state.progress.step > 6)
    assert any("longer cooldown_time" in str(problem) for problem in told(first, telemetry.Problem))
    assert not [command for command, _ in world.refused if isinstance(command, Checkpoint)]


def test_the_last_model_is_stored_before_its_member_leaves() -> None:
    world = Stage(3, stores=range(3), total_steps=3, cooldown_time=1)
    world.store_seconds = 30.0
    first = until_cooldown(world)[0]
    world.run()
    assert all(member.stop is not None and member.stop.success for member in world.members)
    assert location(world).settings == place(first, 3).settings


def test_a_replica_that_is_not_the_others_is_not_stored() -> None:
    """Who is astray finds out from the others' digests, which are waited for before the duty is taken."""
    world = Stage(4, stores=range(4), total_steps=3, cooldown_time=4)
    order = until_cooldown(world)
    diverged = order[0]
    diverged.liar = True  # it knows nothing of it, and saves its model like any other
    diverged.replica.corrupt(1)
    wrong = diverged.masters
    world.run()
    others = {member.masters for member in order if member is not diverged}
    assert len(others) == 1
    settings = location(world).settings
    assert settings is not None
    assert {world.stored[settings["repo_id"]][0]} == others
    assert wrong not in {masters for masters, _ in world.stored.values()}


@pytest.mark.parametrize("store_seconds", [quarter / 4 for quarter in range(2, 24)])
def test_a_run_never_goes_back_to_an_older_model(store_seconds: float) -> None:
    """Who is elected again in the next epoch does not tell it where the last one's model is (simulator, seed 24240)."""
    world = Stage(1, stores=range(1), total_steps=12, cooldown_time=2)
    world.store_seconds, world.close_seconds = store_seconds, 0.8
    moved: list[tuple[object, int]] = []

    def over() -> bool:
        settings = location(world).settings
        if not moved or moved[-1][0] != settings:
            moved.append((settings, world.state.progress.step - 1))
        return world.members[0].stop is not None

    world.run(until=over)
    assert all(settings == {"repo_id": f"client-0-step{step}"} for settings, step in moved[1:])
    assert moved[-1][1] == 12
