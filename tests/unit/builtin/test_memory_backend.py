from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from psyche_core.builtin.memory_backend import MemoryCoordinator
from psyche_core.coordinator.commands import Event, Pause, Resume, WarmupWitness
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.testing.backend import START_TIME, BackendConformance, BackendHarness, small_state
from psyche_core.types import NodeIdentity, RunState
from psyche_core.wire.messages import sign_join
from psyche_core.wire.signing import SecretKey


class Clock:
    def __init__(self) -> None:
        self.now = START_TIME

    def __call__(self) -> float:
        return self.now


def proof(coordinator: MemoryCoordinator, key: SecretKey) -> bytes:
    """That the member with one key for everything holds it."""
    return sign_join(key, coordinator.state.instance, key.public)


class TestMemoryBackend(BackendConformance):
    @asynccontextmanager
    async def harness(self, state: CoordinatorState, keys: Sequence[SecretKey]) -> AsyncIterator[BackendHarness]:
        clock = Clock()
        coordinator = MemoryCoordinator(state, clock=clock)

        def pass_time(seconds: int) -> None:
            clock.now += seconds
            coordinator.tick()

        yield BackendHarness([coordinator.backend(key) for key in keys], pass_time)

    async def test_events_and_owner_commands(self) -> None:
        seen: list[tuple[RunState, tuple[Event, ...]]] = []
        coordinator = MemoryCoordinator(
            small_state(), clock=Clock(), on_event=lambda state, events: seen.append((state.run_state, events))
        )
        coordinator.submit(Pause())
        coordinator.submit(Resume())
        assert [phase for phase, _ in seen] == [RunState.Paused, RunState.WaitingForMembers]

    async def test_same_seeds_and_clock_give_the_same_run(self, keys: list[SecretKey]) -> None:
        states = []
        for _ in range(2):
            clock = Clock()
            numbers = iter(range(1000))
            coordinator = MemoryCoordinator(small_state(), clock=clock, seeds=lambda numbers=numbers: next(numbers))  # type: ignore[misc]  # default binds early
            for key in keys:
                coordinator.join(NodeIdentity(key.public, key.public), b"", proof=proof(coordinator, key))
            for _ in range(30):
                clock.now += 10
                coordinator.tick()
                if coordinator.state.run_state is RunState.Warmup:
                    for slot, client in enumerate(coordinator.state.epoch.clients):
                        coordinator.submit(WarmupWitness(client.id, coordinator.state.progress.epoch, slot, b"\1" * 32))
            states.append(coordinator.state)
        assert states[0] == states[1]
        assert states[0].current_round is not None

    async def test_run_ticks_until_cancelled(self) -> None:
        clock = Clock()
        coordinator = MemoryCoordinator(small_state(clients=1), clock=clock)
        key = SecretKey(bytes(32))
        coordinator.join(NodeIdentity(key.public, key.public), b"", proof=proof(coordinator, key))
        backend = coordinator.backend(key)
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: coordinator.run(tick_seconds=0.001))
            clock.now += 3
            with anyio.fail_after(10):
                while (await backend.next_state()).state.run_state is not RunState.Warmup:
                    pass
            group.cancel_scope.cancel()
