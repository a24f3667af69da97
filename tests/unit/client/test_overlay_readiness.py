"""What the machine has to do with who is connected: the seed for the transport, and whom it waits for before it is ready."""

from __future__ import annotations

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import announcements
from psyche_core.client.machine.epoch import EpochNotes
from psyche_core.client.machine.timeouts import Timeouts
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import NodeIdentity, RunState
from stage import Member, Stage


def test_the_transport_is_told_each_epochs_seed_though_the_members_stay() -> None:
    world = Stage(3, total_steps=9)
    told: dict[Member, list[act.SetPeers]] = {member: [] for member in world.members}
    seeds: list[int] = []
    for member in world.members:

        def note(action: act.SetPeers, member: Member = member, before: object = member._set_peers) -> None:
            told[member].append(action)
            before(action)  # type: ignore[operator]

        member._set_peers = note  # type: ignore[method-assign]

    def over() -> bool:
        if world.state.epoch.clients and world.state.epoch.seed not in seeds:
            seeds.append(world.state.epoch.seed)
        return all(member.stop is not None for member in world.survivors())

    world.run(until=over)
    assert len(seeds) >= 3
    for actions in told.values():
        assert {len(action.members) for action in actions if action.members} == {3}
        assert [action.seed for action in actions if action.members] == seeds


def in_warmup() -> tuple[NodeIdentity, CoordinatorState, EpochNotes, list[bytes]]:
    """A member of five in a warmup that needs three, its notes, and the p2p keys of the others."""
    world = Stage(5, init_min_clients=3, min_clients=3)
    world.run(until=lambda: world.state.run_state is RunState.Warmup)
    member = world.members[0]
    world.run(until=lambda: member.machine.notes is not None and member.machine.notes.slot is not None)
    notes = member.machine.notes
    assert notes is not None
    notes.ready_sent = False
    others = [other.identity.p2p for other in world.members[1:]]
    return member.identity, world.state, notes, others


def is_ready(connected: list[int], *, neighbours: list[int] | None, waited: float) -> bool:
    """Whether it reports that it is ready. connected, neighbours: places among the others."""
    identity, state, notes, others = in_warmup()
    announced = announcements.in_warmup(
        identity,
        state,
        notes,
        peers=frozenset(others[number] for number in connected),
        neighbours=None if neighbours is None else frozenset(others[number] for number in neighbours),
        now=notes.since + waited,
        timeouts=Timeouts(peers=10.0, last_peers=3.0),
    )
    return bool(announced)


def test_who_has_neighbours_waits_for_these_only() -> None:
    assert not is_ready([0, 1], neighbours=None, waited=0.0)
    assert is_ready([0, 1], neighbours=[0, 1], waited=0.0)
    assert not is_ready([0, 3], neighbours=[0, 1], waited=0.0)
    assert is_ready([0, 1, 2, 3], neighbours=None, waited=0.0)


def test_the_last_neighbours_are_waited_for_shorter_once_the_same_part_is_connected() -> None:
    """init_min_clients is three of five, and two of three are no less."""
    assert is_ready([0, 1], neighbours=None, waited=3.1)
    assert not is_ready([0], neighbours=None, waited=3.1)
    assert is_ready([0], neighbours=[0, 1], waited=3.1)
    assert not is_ready([0], neighbours=[0, 1, 2], waited=3.1), "two of four"
    assert is_ready([0], neighbours=[0, 1, 2], waited=10.1)
