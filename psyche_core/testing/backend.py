"""Conformance of coordinator backends: what `psyche_core.interfaces.backend` promises, as tests a plugin author inherits.

    class TestMyBackend(BackendConformance):
        @asynccontextmanager
        async def harness(self, state, keys):
            async with my_coordinator(state, clock=...) as coordinator, ...:
                yield BackendHarness(backends, pass_time)

The coordinator behind the backends must follow the given state and a clock that only `pass_time` moves, so that no test waits
for real seconds. Backends are entered, one for each key, with the key in both halves of the identity.
"""

# ruff: noqa: D102  # the tests' names describe them

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import ClassVar

import anyio

from psyche_core.config.run_config import Choice, CoordinatorConfig, LLMConfig, ModelConfig
from psyche_core.coordinator import new_state
from psyche_core.coordinator.commands import Pause, WarmupWitness, Withdraw, Witness
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendClosed, CommandRefused
from psyche_core.interfaces.backend import Backend, StateUpdate
from psyche_core.testing.conformance import Conformance
from psyche_core.testing.needs_pytest import pytest
from psyche_core.types import RunState, WitnessStatement, bitmap
from psyche_core.wire.signing import SecretKey

TIMEOUT = 20.0
START_TIME = 1_700_000_000


@dataclass(frozen=True, slots=True)
class BackendHarness:
    """A coordinator with clients.

    Attributes:
        backends: in the order of the keys.
        pass_time: advances its clock by this many seconds.
    """

    backends: Sequence[Backend]
    pass_time: Callable[[int], None]


def small_state(*, clients: int = 2, run_id: str = "conformance") -> CoordinatorState:
    """A run that waits for `clients` members: no witness election, three samples per round, ten steps."""
    config = CoordinatorConfig(
        warmup_time=100,
        cooldown_time=10,
        max_round_train_time=50,
        round_witness_time=5,
        epoch_time=1000,
        global_batch_size_warmup_tokens=0,
        total_steps=10,
        init_min_clients=clients,
        min_clients=1,
        witness_nodes=0,
        global_batch_size_start=6,
        global_batch_size_end=6,
        verification_percent=0,
        waiting_for_members_extra_time=2,
    )
    llm = LLMConfig(
        max_seq_len=8,
        cold_start_warmup_steps=0,
        architecture="HfLlama",
        checkpoint=Choice("Dummy", {"repo_id": "none"}),
        data_type="Pretraining",
        data_location=Choice("Dummy"),
        lr_schedule=Choice("Constant", {"base_lr": 0.1, "warmup_init_lr": 0.0, "warmup_steps": 0}),
        optimizer=Choice("AdamW"),
    )
    return new_state(run_id, config, ModelConfig(LLM=llm), now=START_TIME, instance=hashlib.sha256(run_id.encode()).digest())


async def until(backend: Backend, wanted: Callable[[StateUpdate], bool]) -> StateUpdate:
    """Wait for the first state of a backend that fulfils `wanted`. Raises TimeoutError after TIMEOUT seconds."""
    with anyio.fail_after(TIMEOUT):
        while True:
            update = await backend.next_state()
            if wanted(update):
                return update


def in_phase(phase: RunState) -> Callable[[StateUpdate], bool]:
    """A test whether an update is in a phase, for `until`."""
    return lambda update: update.state.run_state is phase


@pytest.mark.anyio
class BackendConformance(Conformance):
    """Inherit from it and write `harness`.

    Attributes:
        renewals: how often a member joins with a new address while another member does not read states.
    """

    renewals: ClassVar[int] = 50

    def harness(self, state: CoordinatorState, keys: Sequence[SecretKey]) -> AbstractAsyncContextManager[BackendHarness]:
        """A coordinator that starts with `state` and its clock at `state.since`, and an entered backend for each key."""
        raise NotImplementedError

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def keys(self) -> list[SecretKey]:
        return [SecretKey(bytes([number]) * 32) for number in (1, 2)]

    async def test_first_state_is_the_current_one(self, keys: list[SecretKey]) -> None:
        state = small_state()
        async with self.harness(state, keys) as harness:
            for backend, key in zip(harness.backends, keys, strict=True):
                update = await until(backend, lambda _: True)
                assert update.state == replace(state, instance=update.state.instance)  # a chain sets its own instance
                assert update.addresses == {}
                assert (backend.identity.signer, backend.identity.p2p) == (key.public, key.public)

    async def test_join_is_idempotent_and_hands_addresses_to_others(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            first, second = harness.backends
            await first.join(b"first", timeout=TIMEOUT)
            await first.join(b"first", timeout=TIMEOUT)
            update = await until(second, lambda update: bool(update.addresses))
            assert update.state.pending == (first.identity,)
            await second.join(b"second", timeout=TIMEOUT)
            update = await until(first, lambda update: len(update.addresses) == 2)
            assert update.state.pending == (first.identity, second.identity)
            assert update.addresses == {first.identity.signer: b"first", second.identity.signer: b"second"}

    async def test_joining_again_renews_the_address(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            first, second = harness.backends
            await first.join(b"old", timeout=TIMEOUT)
            await until(second, lambda update: update.addresses.get(first.identity.signer) == b"old")
            await first.join(b"new", timeout=TIMEOUT)
            update = await until(second, lambda update: update.addresses.get(first.identity.signer) == b"new")
            assert update.state.pending == (first.identity,)

    async def test_too_long_address_is_refused(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            with pytest.raises(ValueError, match="1024"):
                await harness.backends[0].join(b"x" * 1025, timeout=TIMEOUT)
            await harness.backends[0].join(b"x" * 1024, timeout=TIMEOUT)

    async def test_refused_command_has_the_coordinators_name(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            backend = harness.backends[0]
            with pytest.raises(CommandRefused) as refused:
                await backend.send(Withdraw(backend.identity), timeout=TIMEOUT)
            assert refused.value.code == "InvalidWithdraw"
            with pytest.raises(CommandRefused) as refused:
                await backend.send(WarmupWitness(backend.identity, 0, 0, b"\1" * 32), timeout=TIMEOUT)
            assert refused.value.code == "InvalidRunState"

    async def test_owners_commands_are_not_for_clients(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            with pytest.raises(CommandRefused):
                await harness.backends[0].send(Pause(), timeout=TIMEOUT)

    async def test_command_in_anothers_name_is_a_mistake(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            with pytest.raises(ValueError, match="sender"):
                await harness.backends[0].send(Withdraw(harness.backends[1].identity), timeout=TIMEOUT)

    async def test_cancelled_next_state_loses_nothing(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            first, second = harness.backends
            await until(second, lambda _: True)
            async with anyio.create_task_group() as group:
                waiting = anyio.Event()

                async def wait() -> None:
                    waiting.set()
                    await second.next_state()
                    pytest.fail("nothing has changed")

                group.start_soon(wait)
                await waiting.wait()
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
            await first.join(b"first", timeout=TIMEOUT)
            update = await until(second, lambda update: bool(update.addresses))
            assert update.state.pending == (first.identity,)

    async def test_slow_reader_gets_the_newest_state(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            first, second = harness.backends
            for number in range(self.renewals):
                await first.join(b"%d" % number, timeout=TIMEOUT)
            await second.join(b"me", timeout=TIMEOUT)
            update = await until(second, lambda update: len(update.addresses) == 2)
            assert update.addresses[first.identity.signer] == b"%d" % (self.renewals - 1)

    async def test_walk_from_waiting_to_the_second_round(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            for backend in harness.backends:
                await backend.join(b"address", timeout=TIMEOUT)
            harness.pass_time(3)
            for slot, backend in enumerate(harness.backends):
                update = await until(backend, in_phase(RunState.Warmup))
                assert update.state.slot_of(backend.identity) == slot
                await backend.send(WarmupWitness(backend.identity, 0, slot, b"\1" * 32), timeout=TIMEOUT)

            for slot, backend in enumerate(harness.backends):
                update = await until(backend, lambda update: update.state.run_state.active)
                assert update.state.current_round is not None
                statement = WitnessStatement(0, 0, slot, bitmap([]), bytes(320), bytes(32), bytes(32))
                await backend.send(Witness(backend.identity, statement), timeout=TIMEOUT)
                if slot == 0:
                    with pytest.raises(CommandRefused) as refused:
                        await backend.send(Witness(backend.identity, statement), timeout=TIMEOUT)
                    assert refused.value.code == "DuplicateWitness"

            harness.pass_time(6)
            heights = [
                (
                    await until(
                        backend, lambda update: update.state.current_round is not None and update.state.current_round.height == 1
                    )
                )
                for backend in harness.backends
            ]
            assert heights[0].state == heights[1].state

    async def test_withdrawn_member_is_gone(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            first, second = harness.backends
            await first.join(b"first", timeout=TIMEOUT)
            await until(second, lambda update: bool(update.addresses))
            await first.send(Withdraw(first.identity), timeout=TIMEOUT)
            update = await until(second, lambda update: not update.addresses)
            assert update.state.pending == ()

    async def test_close_is_idempotent_and_final(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            first, second = harness.backends
            await until(first, lambda _: True)
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    with pytest.raises(BackendClosed):
                        await first.next_state()

                group.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                await first.aclose()
            await first.aclose()
            with pytest.raises(BackendClosed):
                await first.next_state()
            with pytest.raises(BackendClosed):
                await first.join(b"first", timeout=TIMEOUT)
            with pytest.raises(BackendClosed):
                await first.send(Withdraw(first.identity), timeout=TIMEOUT)
            await second.join(b"second", timeout=TIMEOUT)
