"""What a client promises around training: callbacks, events, order of leaving, errors."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
import torch
from sdk_parts import DATA, Net, digests, losses, make_net, make_run

import psyche_core as psyche
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.hookspecs import TransportContext


async def test_a_callback_that_raises_is_told_once_and_stops_nothing() -> None:
    calls: list[psyche.events.Event] = []
    good: list[psyche.events.Event] = []

    def broken(event: psyche.events.Event) -> None:
        calls.append(event)
        if isinstance(event, psyche.events.StepTrained):
            message = "no screen"
            raise OSError(message)

    async with (
        psyche.Coordinator(make_run(clients=1)) as coordinator,
        psyche.Client(coordinator.address, model=make_net(), data=DATA, callbacks=[broken, good.append]) as client,
    ):
        assert (await client.wait()).success

    problems = [event.message for event in good if isinstance(event, psyche.events.Problem)]
    assert len(problems) == 1
    assert "broken failed with OSError: no screen; it is not called again, and training continues" in problems[0]
    assert len(losses(calls)) == 1
    assert len(losses(good)) == 8


async def test_events_are_read_from_the_start_by_each_reader_and_end() -> None:
    async with (
        psyche.Coordinator(make_run(clients=1)) as coordinator,
        psyche.Client(coordinator.address, model=make_net(), data=DATA) as client,
    ):
        first = [event async for event in client.events()]
        second = [event async for event in client.events()]

    assert first == second
    assert isinstance(first[0], psyche.events.Started)
    assert isinstance(first[-1], psyche.events.Ended)


async def test_stop_after_a_step_leaves_in_order_and_saves_and_the_next_start_goes_on(tmp_path: Path) -> None:
    run = make_run(steps=12, clients=1)
    network = MemoryNetwork()

    def transport(context: TransportContext) -> MemoryTransport:
        return MemoryTransport(network, context.key.public)

    async def part(*, until: int | None) -> tuple[list[psyche.events.Event], psyche.Client]:
        told: list[psyche.events.Event] = []
        async with (
            psyche.Coordinator(run, backend="tcp", state_dir=tmp_path / "state") as coordinator,
            psyche.Client(
                coordinator.address,
                model=make_net(),
                data=DATA,
                transport=transport,
                callbacks=[told.append],
                checkpoint_dir=tmp_path / "saved",
            ) as client,
        ):
            if until is not None:
                client.stop(after_step=until)
            await client.wait()
        return told, client

    first, client = await part(until=3)
    saved = [event for event in first if isinstance(event, psyche.events.CheckpointSaved)]
    assert 3 <= saved[-1].step < 12
    assert saved[-1].step == client.metrics.applied
    assert len(list((tmp_path / "saved").glob("tiny-step*"))) == 1

    second, client = await part(until=None)
    [resumed] = [event for event in second if isinstance(event, psyche.events.Resumed)]
    assert resumed.checkpoint == saved[-1].step
    assert client.metrics.applied == 12
    assert losses(second)[-1] < losses(first)[0] - 0.1
    assert [event.success for event in second if isinstance(event, psyche.events.Ended)] == [True]


async def test_a_client_that_pauses_leaves_and_comes_back_with_the_same_key() -> None:
    told: list[psyche.events.Event] = []
    run = make_run(steps=30, clients=1, steps_per_epoch=10)
    async with (
        psyche.Coordinator(run) as coordinator,
        psyche.Client(coordinator.address, model=make_net(), data=DATA) as steady,
        psyche.Client(coordinator.address, model=make_net(), data=DATA, callbacks=[told.append]) as other,
    ):
        while other.metrics.applied < 2:
            await anyio.sleep(0.01)
        other.pause()
        while not any(isinstance(event, psyche.events.Ended) for event in told):
            await anyio.sleep(0.01)
        away = len(told)
        assert told[-1] == psyche.events.Ended("left the run as asked", success=True), "as docs/reference/sdk.md says"
        other.resume()
        await steady.wait()
        await other.wait()

    assert len({event.id for event in told if isinstance(event, psyche.events.Started)}) == 1
    assert any(isinstance(event, psyche.events.Joined) for event in told[away:])
    assert digests(told)[-1] == digests([event async for event in steady.events()])[-1]


async def test_the_owner_pauses_and_resumes_the_run() -> None:
    phases: list[str] = []
    run = make_run(steps=6, clients=1, steps_per_epoch=3)
    async with (
        psyche.Coordinator(run, on_change=lambda state, _: phases.append(state.run_state.name)) as coordinator,
        psyche.Client(coordinator.address, model=make_net(), data=DATA) as client,
    ):
        while client.metrics.step < 1:
            await anyio.sleep(0.01)
        coordinator.pause()
        while coordinator.state.run_state.name != "Paused":
            await anyio.sleep(0.01)
        paused_at = coordinator.state.progress.step
        assert 1 < paused_at < 7
        coordinator.resume()
        await client.wait()
        last = await coordinator.wait()

    assert last.progress.step == 7
    assert client.metrics.applied == 6
    assert phases[-1] == "Finished"


class Broken(Net):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids)[0]


async def test_a_module_that_answers_nonsense_is_told_with_what_is_expected() -> None:
    async with (
        psyche.Coordinator(make_run(clients=1)) as coordinator,
        psyche.Client(coordinator.address, model=Broken(), data=DATA) as client,
    ):
        async for event in client.events():
            if isinstance(event, psyche.events.Problem):
                break

    assert "the module Broken must return, for ids of shape (8, 8), logits" in event.message  # type: ignore[union-attr]


async def test_what_ends_a_client_is_raised_when_its_block_ends_and_the_block_is_not_cancelled() -> None:
    went_on = False
    with pytest.raises(  # noqa: PT012  # the block is what is tested
        psyche.errors.PluginError, match="the run has AdamW as its optimizer, but this program expects"
    ):
        async with (
            psyche.Coordinator(make_run(clients=1)) as coordinator,
            psyche.Client(coordinator.address, model=make_net(), data=DATA, optimizer="Distro"),
        ):
            await anyio.sleep(1)
            went_on = True
    assert went_on


async def test_an_exception_in_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the block is what is tested
        async with (
            psyche.Coordinator(make_run(clients=1)) as coordinator,
            psyche.Client(coordinator.address, model=make_net(), data=DATA) as client,
        ):
            async for _ in client.events():
                raise ZeroDivisionError


async def test_a_client_that_cannot_connect_yet_can_be_stopped() -> None:
    client = psyche.Client("127.0.0.1:1#insecure", run_id="tiny", model=make_net(), data=DATA, transport="memory")
    with anyio.fail_after(20):
        async with client:
            await anyio.sleep(0.5)
            client.stop()
            ended = await client.wait()
    assert ended.reason == "left before joining the run"


async def test_a_finished_run_entered_again_says_so_at_once(tmp_path: Path) -> None:
    """It was waited for, and ended with an error about a connection after minutes."""
    run = make_run(steps=2, clients=1)
    network = MemoryNetwork()

    async def part(told: list[psyche.events.Event]) -> psyche.events.Ended:
        async with (
            psyche.Coordinator(run, backend="tcp", state_dir=tmp_path) as coordinator,
            psyche.Client(
                coordinator.address,
                model=make_net(),
                data=DATA,
                transport=lambda context: MemoryTransport(network, context.key.public),
                callbacks=[told.append],
            ) as client,
        ):
            return await client.wait()

    await part([])
    told: list[psyche.events.Event] = []
    with anyio.fail_after(20):
        ended = await part(told)
    assert ended == psyche.events.Ended("the run finished after 2 steps", success=True)
    [problem, last] = told
    assert isinstance(problem, psyche.events.Problem)
    assert problem.message.startswith("the run finished after 2 steps, before this client took part; its model has not changed")
    assert last == ended
