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

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import ClassVar

import anyio

from psyche_core.coordinator.commands import Pause, WarmupWitness, Withdraw, Witness
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendClosed, CommandRefused
from psyche_core.interfaces.backend import Backend, StateUpdate
from psyche_core.testing.conformance import Conformance
from psyche_core.testing.contracts import CONTRACTS, Contract
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.sentences import raises, shown
from psyche_core.testing.small_run import START_TIME as START_TIME
from psyche_core.testing.small_run import small_state as small_state
from psyche_core.types import RunState, WitnessStatement, bitmap
from psyche_core.wire.signing import SecretKey

TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class BackendHarness:
    """A coordinator with clients.

    Attributes:
        backends: in the order of the keys.
        pass_time: advances its clock by this many seconds.
    """

    backends: Sequence[Backend]
    pass_time: Callable[[int], None]


async def until(backend: Backend, wanted: Callable[[StateUpdate], bool]) -> StateUpdate:
    """Wait for the first state of a backend that fulfils `wanted`. Raises TimeoutError after TIMEOUT seconds."""
    update = None
    with anyio.move_on_after(TIMEOUT):
        while True:
            update = await backend.next_state()
            if wanted(update):
                return update
    message = (
        f"next_state must give the newest state eventually; the one that this test waits for did not come within {TIMEOUT:g} s, "
        f"the last one was {_brief(update)}"
    )
    raise TimeoutError(message)


def _brief(update: StateUpdate | None) -> str:
    if update is None:
        return "none at all"
    state = update.state
    return f"of phase {state.run_state.name} with {len(state.pending)} waiting members and {len(update.addresses)} addresses"


def in_phase(phase: RunState) -> Callable[[StateUpdate], bool]:
    """A test whether an update is in a phase, for `until`."""
    return lambda update: update.state.run_state is phase


@pytest.mark.anyio
class BackendConformance(Conformance):
    """Inherit from it and write `harness`.

    Attributes:
        renewals: how often a member joins with a new address while another member does not read states.
    """

    contract: ClassVar[Contract] = CONTRACTS["backend"]
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
                wanted = replace(state, instance=update.state.instance)  # a chain sets its own instance
                assert update.state == wanted, (
                    f"the first call of next_state must return the current state, {shown(wanted)}, got {shown(update.state)}"
                )
                assert update.addresses == {}, (
                    f"nobody has joined, so StateUpdate.addresses must be empty, got {shown(update.addresses)}"
                )
                came = backend.identity.signer, backend.identity.p2p
                assert came == (key.public, key.public), (
                    f"identity must have the key it was made with as signer and as p2p, {key.public.hex()}, got {shown(came)}"
                )

    async def test_join_is_idempotent_and_hands_addresses_to_others(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            first, second = harness.backends
            await first.join(b"first", timeout=TIMEOUT)
            await first.join(b"first", timeout=TIMEOUT)
            update = await until(second, lambda update: bool(update.addresses))
            assert update.state.pending == (first.identity,), (
                f"join is idempotent: who joined twice must wait once, got {shown(update.state.pending)} in state.pending"
            )
            await second.join(b"second", timeout=TIMEOUT)
            update = await until(first, lambda update: len(update.addresses) == 2)
            assert update.state.pending == (first.identity, second.identity), (
                f"both members have joined and must wait in that order, got {shown(update.state.pending)} in state.pending"
            )
            addresses = {first.identity.signer: b"first", second.identity.signer: b"second"}
            assert update.addresses == addresses, (
                f"StateUpdate.addresses must have the address with which each member joined, {shown(addresses)}, got "
                f"{shown(update.addresses)}"
            )

    async def test_joining_again_renews_the_address(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            first, second = harness.backends
            await first.join(b"old", timeout=TIMEOUT)
            await until(second, lambda update: update.addresses.get(first.identity.signer) == b"old")
            await first.join(b"new", timeout=TIMEOUT)
            update = await until(second, lambda update: update.addresses.get(first.identity.signer) == b"new")
            assert update.state.pending == (first.identity,), (
                f"joining again renews the address and adds no member, got {shown(update.state.pending)} in state.pending"
            )

    async def test_too_long_address_is_refused(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            with raises(ValueError, "join must raise ValueError for an address of 1025 bytes: at most 1024", match="1024"):
                await harness.backends[0].join(b"x" * 1025, timeout=TIMEOUT)
            await harness.backends[0].join(b"x" * 1024, timeout=TIMEOUT)

    async def test_refused_command_has_the_coordinators_name(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            backend = harness.backends[0]
            with raises(CommandRefused, "send must raise CommandRefused for the Withdraw of who has not joined") as refused:
                await backend.send(Withdraw(backend.identity), timeout=TIMEOUT)
            assert refused.value.code == "InvalidWithdraw", (
                f"CommandRefused must have the coordinator's name of the error, InvalidWithdraw, got {shown(refused.value.code)}"
            )
            with raises(CommandRefused, "send must raise CommandRefused for a WarmupWitness outside the warmup") as refused:
                await backend.send(WarmupWitness(backend.identity, 0, 0, b"\1" * 32), timeout=TIMEOUT)
            assert refused.value.code == "InvalidRunState", (
                f"CommandRefused must have the coordinator's name of the error, InvalidRunState, got {shown(refused.value.code)}"
            )

    async def test_owners_commands_are_not_for_clients(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            with raises(CommandRefused, "send must raise CommandRefused for Pause, which only the owner may send"):
                await harness.backends[0].send(Pause(), timeout=TIMEOUT)

    async def test_command_in_anothers_name_is_a_mistake(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            wanted = "send must raise ValueError for a command whose sender is another client (check_client_command does)"
            with raises(ValueError, wanted, match="sender"):
                await harness.backends[0].send(Withdraw(harness.backends[1].identity), timeout=TIMEOUT)

    async def test_cancelled_next_state_loses_nothing(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            first, second = harness.backends
            await until(second, lambda _: True)
            async with anyio.create_task_group() as group:
                waiting = anyio.Event()

                async def wait() -> None:
                    waiting.set()
                    update = await second.next_state()
                    pytest.fail(f"next_state must wait for a newer state; nothing has changed, and it gave one {_brief(update)}")

                group.start_soon(wait)
                await waiting.wait()
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
            await first.join(b"first", timeout=TIMEOUT)
            update = await until(second, lambda update: bool(update.addresses))
            assert update.state.pending == (first.identity,), (
                "a cancelled next_state must lose nothing, so the next call must show the member that joined meanwhile, got "
                f"{shown(update.state.pending)} in state.pending"
            )

    async def test_slow_reader_gets_the_newest_state(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            first, second = harness.backends
            for number in range(self.renewals):
                await first.join(b"%d" % number, timeout=TIMEOUT)
            await second.join(b"me", timeout=TIMEOUT)
            update = await until(second, lambda update: len(update.addresses) == 2)
            newest = b"%d" % (self.renewals - 1)
            assert update.addresses[first.identity.signer] == newest, (
                f"a slow reader must get the newest state, where the address of the last join is {newest!r}, got "
                f"{shown(update.addresses[first.identity.signer])}"
            )

    async def test_walk_from_waiting_to_the_second_round(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            for backend in harness.backends:
                await backend.join(b"address", timeout=TIMEOUT)
            harness.pass_time(3)
            for slot, backend in enumerate(harness.backends):
                update = await until(backend, in_phase(RunState.Warmup))
                came = update.state.slot_of(backend.identity)
                assert came == slot, f"members must be seated in the order in which they joined, place {slot}, got {came}"
                await backend.send(WarmupWitness(backend.identity, 0, slot, b"\1" * 32), timeout=TIMEOUT)

            for slot, backend in enumerate(harness.backends):
                update = await until(backend, lambda update: update.state.run_state.active)
                assert update.state.current_round is not None, (
                    f"a state in which members train must have its round, got {_brief(update)} and no current_round"
                )
                statement = WitnessStatement(0, 0, slot, bitmap([]), bytes(320), bytes(32), bytes(32))
                await backend.send(Witness(backend.identity, statement), timeout=TIMEOUT)
                if slot == 0:
                    with raises(CommandRefused, "send must raise CommandRefused for a second statement of a witness") as refused:
                        await backend.send(Witness(backend.identity, statement), timeout=TIMEOUT)
                    assert refused.value.code == "DuplicateWitness", (
                        "CommandRefused must have the coordinator's name of the error, DuplicateWitness, got "
                        f"{shown(refused.value.code)}"
                    )

            harness.pass_time(6)
            heights = [
                (
                    await until(
                        backend, lambda update: update.state.current_round is not None and update.state.current_round.height == 1
                    )
                )
                for backend in harness.backends
            ]
            assert heights[0].state == heights[1].state, (
                f"all clients must get the coordinator's states, bit for bit; of the same round one got "
                f"{shown(heights[0].state)}, another {shown(heights[1].state)}"
            )

    async def test_withdrawn_member_is_gone(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            first, second = harness.backends
            await first.join(b"first", timeout=TIMEOUT)
            await until(second, lambda update: bool(update.addresses))
            await first.send(Withdraw(first.identity), timeout=TIMEOUT)
            update = await until(second, lambda update: not update.addresses)
            assert update.state.pending == (), (
                f"the only member has withdrawn, so state.pending must be empty, got {shown(update.state.pending)}"
            )

    async def test_close_is_idempotent_and_final(self, keys: list[SecretKey]) -> None:
        async with self.harness(small_state(), keys) as harness:
            first, second = harness.backends
            await until(first, lambda _: True)
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    with raises(BackendClosed, "aclose must end a next_state that waits with BackendClosed"):
                        await first.next_state()

                group.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                await first.aclose()
            await first.aclose()
            with raises(BackendClosed, "next_state must raise BackendClosed after aclose"):
                await first.next_state()
            with raises(BackendClosed, "join must raise BackendClosed after aclose"):
                await first.join(b"first", timeout=TIMEOUT)
            with raises(BackendClosed, "send must raise BackendClosed after aclose"):
                await first.send(Withdraw(first.identity), timeout=TIMEOUT)
            await second.join(b"second", timeout=TIMEOUT)
