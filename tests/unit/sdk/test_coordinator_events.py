"""What a coordinator tells a program: members, rounds and phases, to each reader, until it closes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from sdk_parts import DATA, make_net, make_run

import psyche_core as psyche
from psyche_core import run_events
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.coordinator.state import Client, Epoch
from psyche_core.sdk.event_log import KEPT, EventLog
from psyche_core.types import ClientState, NodeIdentity, RunState
from psyche_core.wire.signing import SecretKey


@pytest.mark.parametrize("backend", ["memory", "tcp"])
async def test_a_whole_run_is_told_in_order(backend: str) -> None:
    network, keys = MemoryNetwork(), [SecretKey.generate(), SecretKey.generate()]
    more: dict[str, Any] = {}
    if backend == "tcp":
        more["transport"] = lambda context: MemoryTransport(network, context.key.public)
    told: list[run_events.RunEvent] = []
    run = make_run(steps=4, steps_per_epoch=2)
    async with psyche.Coordinator(run, backend=backend) as coordinator, anyio.create_task_group() as group:

        async def read() -> None:
            told.extend([event async for event in coordinator.events()])

        group.start_soon(read)
        async with (
            psyche.Client(coordinator.address, model=make_net(), data=DATA, key=keys[0], **more) as one,
            psyche.Client(coordinator.address, model=make_net(), data=DATA, key=keys[1], **more) as other,
        ):
            await one.wait()
            await other.wait()

    assert told[0] == run_events.PhaseChanged("WaitingForMembers", 0, 1, 0, None, 2)
    joined = [event for event in told if isinstance(event, run_events.MemberJoined)]
    assert {event.member for event in joined} == {key.public.hex() for key in keys}
    begun = told.index(run_events.EpochStarted(0, 2))
    assert max(map(told.index, joined)) < begun < told.index(run_events.PhaseChanged("Warmup", 0, 1, 2))
    settled = [event for event in told if isinstance(event, run_events.RoundSettled)]
    assert [event.step for event in settled] == [1, 2, 3, 4]
    assert all({*event.accepted, *event.refused} == {0, 1} for event in settled)
    assert [event.epoch for event in told if isinstance(event, run_events.EpochEnded)] == [0, 1]
    finished = told.index(run_events.RunFinished(4))
    assert [event.phase for event in told[finished:] if isinstance(event, run_events.PhaseChanged)] == ["Finished"]


async def test_each_reader_reads_from_the_start_and_leaving_the_block_ends_it() -> None:
    told: list[list[run_events.RunEvent]] = [[], []]

    async def read(coordinator: psyche.Coordinator, into: list[run_events.RunEvent]) -> None:
        into.extend([event async for event in coordinator.events()])

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group, psyche.Coordinator(make_run()) as coordinator:
            group.start_soon(read, coordinator, told[0])
            await anyio.sleep(0)
            coordinator.pause()
            group.start_soon(read, coordinator, told[1])
            await anyio.sleep(0)

    assert [event.phase for event in told[0] if isinstance(event, run_events.PhaseChanged)] == ["WaitingForMembers", "Paused"]
    assert told[0] == told[1]


async def test_events_outside_the_block_say_so() -> None:
    with pytest.raises(RuntimeError, match=r"use it inside `async with psyche\.Coordinator"):
        await anext(aiter(psyche.Coordinator(make_run()).events()))


async def test_what_stops_the_server_comes_after_the_last_event() -> None:
    def broken(state: object, events: object) -> None:
        raise ZeroDivisionError

    told = []
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the block is what is tested
        async with (
            psyche.Coordinator(make_run(clients=1), on_change=broken) as coordinator,
            psyche.Client(coordinator.address, model=make_net(), data=DATA),
        ):
            async for event in coordinator.events():
                told.append(event)
    assert isinstance(told[1], run_events.MemberJoined)


async def test_a_coordinator_that_goes_on_tells_what_it_goes_on_with(tmp_path: Path) -> None:
    async with psyche.Coordinator(make_run(), backend="tcp", state_dir=tmp_path) as coordinator:
        coordinator.pause()
        with anyio.fail_after(20):
            async for event in coordinator.events():
                if isinstance(event, run_events.PhaseChanged) and event.phase == "Paused":
                    break  # told once it is on disk
    async with psyche.Coordinator(make_run(), backend="tcp", state_dir=tmp_path) as coordinator:
        first = await anext(aiter(coordinator.events()))
    assert isinstance(first, run_events.PhaseChanged)
    assert first.phase == "Paused"


async def test_a_reader_that_is_too_slow_misses_the_oldest_events_only() -> None:
    log: EventLog[int] = EventLog()
    for number in range(KEPT + 5):
        log.put(number)
    log.close()
    assert [number async for number in log.read()] == list(range(5, KEPT + 5))


def test_who_leaves_is_told_with_the_reason() -> None:
    one, other = (NodeIdentity(bytes([number]) * 32, bytes([number]) * 32) for number in (1, 2))
    state = replace(make_run().first_state(), run_state=RunState.RoundTrain, pending=(one, other))
    healthy = replace(state, epoch=Epoch(clients=(Client(one), Client(other))))
    assert [*run_events.run_events_between(None, healthy, ())][:2] == [
        run_events.MemberJoined("01" * 32),
        run_events.MemberJoined("02" * 32),
    ]

    lost = replace(state, pending=(one,), epoch=Epoch(clients=(Client(one), Client(other, ClientState.Dropped))))
    events = [*run_events.run_events_between(healthy, lost, (run_events.ClientsExited(0, (1,)),))]
    assert events == [
        run_events.MemberLeft("02" * 32, "Dropped"),
        run_events.ClientsExited(0, (1,)),
        run_events.PhaseChanged("RoundTrain", 0, 1, 1),
    ]
    assert [*run_events.run_events_between(state, replace(state, pending=(one,)), ())] == [
        run_events.MemberLeft("02" * 32, "Withdrawn")
    ]
    assert [*run_events.run_events_between(lost, lost, ())] == []


@pytest.mark.parametrize(
    ("now", "event"),
    [
        (ClientState.Withdrawn, run_events.MemberLeft("02" * 32, "Withdrawn", "lost")),
        (ClientState.Ejected, run_events.MemberLeft("02" * 32, "Ejected")),
    ],
)
def test_who_was_lost_is_told_from_who_left(now: ClientState, event: run_events.MemberLeft) -> None:
    one, other = (NodeIdentity(bytes([number]) * 32, bytes([number]) * 32) for number in (1, 2))
    state = replace(make_run().first_state(), run_state=RunState.RoundTrain, pending=(one, other))
    healthy = replace(state, epoch=Epoch(clients=(Client(one), Client(other))))
    after = replace(state, pending=(one,), epoch=Epoch(clients=(Client(one), Client(other, now))))
    assert next(run_events.run_events_between(healthy, after, (), withdrawn={other.signer: "lost"})) == event
    left = next(run_events.run_events_between(healthy, after, (), withdrawn={one.signer: "lost"}))
    assert left == run_events.MemberLeft("02" * 32, now.name), "another one was"


def test_the_module_has_every_class() -> None:
    classes = {name for name in dir(run_events) if name[0].isupper()}
    assert {cls.__name__ for cls in run_events.RunEvent.__args__} <= classes
