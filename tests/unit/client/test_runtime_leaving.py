"""How the shell ends: leaving in order, a backend that is gone, a model that cannot be built."""

from __future__ import annotations

import threading

import anyio
import pytest

from party import Party, trainers
from psyche_core.builtin.memory_backend import MemoryBackend
from psyche_core.builtin.memory_transport import MemoryTransport
from psyche_core.client.machine import actions as act
from psyche_core.client.machine.machine import Timeouts
from psyche_core.client.runtime import runtime as runtime_module
from psyche_core.client.runtime.reports import network_reporter
from psyche_core.client.runtime.runtime import ClientRuntime
from psyche_core.coordinator.commands import Command, Withdraw
from psyche_core.errors import BackendClosed, CommandRefused, ModelError
from psyche_core.interfaces.backend import StateUpdate
from psyche_core.interfaces.transport import TransportStats
from psyche_core.telemetry import events as telemetry
from psyche_core.types import RunState
from psyche_core.wire.messages import ModelDigest, ModelWanted


class Busy(MemoryTransport):
    """One from which much is fetched until the test says otherwise."""

    fetched = True

    @property
    def stats(self) -> TransportStats:
        stats = super().stats
        self._sent += 2 * network_reporter.SERVING_BYTES if self.fetched else 0
        return stats


class Withholding(ClientRuntime):
    """Asks for the final model, and never says its digest of it."""

    async def carry_out(self, action: act.Action) -> None:
        if isinstance(action, act.Broadcast) and isinstance(action.message, ModelDigest) and action.message.ended:
            asked = ModelWanted(action.message.epoch, self.state.progress.step - 1, self.state.epoch.seed)
            action = act.Broadcast(asked, action.tag)
        await super().carry_out(action)


@pytest.mark.parametrize("fetched", [True, False])
async def test_the_final_model_is_served_as_long_as_it_is_fetched(monkeypatch: pytest.MonkeyPatch, *, fetched: bool) -> None:
    monkeypatch.setattr(network_reporter, "SERVING_SECONDS", 0.3)
    party = Party(trainers(2), min_clients=2, total_steps=2, rounds_per_epoch=2)
    party.timeouts = Timeouts(peers=2.0, offers=0.2, leaving=0.2, payload=30.0)
    party.transport = Busy
    kinds = iter([ClientRuntime, Withholding])
    party.runtime = lambda **parts: next(kinds)(**parts)  # type: ignore[assignment]  # another for each member

    async def look() -> None:
        while 0 not in party.runtimes or party.runtimes[0]._stopped is None:
            await anyio.sleep(0.01)
        if fetched:
            await anyio.sleep(4 * network_reporter.SERVING_SECONDS)
            assert not any(isinstance(event, telemetry.Ended) for event in party.events[0])
        party.transports[0].fetched = False  # type: ignore[attr-defined]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        with anyio.fail_after(25):
            await party.play()

    assert party.ended(0).success


async def test_leaving_withdraws_before_it_ends() -> None:
    party = Party(trainers(1), min_clients=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(party.member, 0)
        while not party.coordinator.state.pending:
            await anyio.sleep(0.01)
        party.runtimes[0].leave()

    assert party.coordinator.state.pending == ()
    assert party.ended(0).reason == "left the run as asked"


async def test_a_backend_that_is_gone_ends_the_client_with_its_reason() -> None:
    party = Party(trainers(1), min_clients=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(party.member, 0)
        while not party.coordinator.state.pending:
            await anyio.sleep(0.01)
        await party.runtimes[0]._backend.aclose()

    assert isinstance(party.failures[0], BackendClosed)
    assert not party.ended(0).success


async def test_a_model_that_cannot_be_built_ends_the_client_with_its_reason() -> None:
    party = Party(trainers(1), min_clients=1)

    def refuse(seed: int = 0) -> bytes:
        message = "the weights do not fit"
        raise ModelError(message)

    party.trainers[0].full_digest = refuse  # type: ignore[method-assign]  # the trainer itself is broken, not the runtime
    await party.play()

    assert str(party.failures[0]) == "the weights do not fit"


class ClosesAtTheEnd(MemoryBackend):
    """A server that is gone as soon as it has told the end of the run."""

    async def next_state(self) -> StateUpdate:
        if self._told_end:
            self.gone.set()
            message = "the server is gone"
            raise BackendClosed(message)

        update = await super().next_state()
        self._told_end = update.state.run_state is RunState.Finished
        return update

    _told_end = False
    gone = threading.Event()


async def test_a_server_that_goes_once_the_run_is_finished_spoils_nothing() -> None:
    """Reference client 1.6: a normally completed run ended every client with an error, maybe before its last upload."""
    slow = trainers(1)
    close = slow[0].full_digest

    def late_digest() -> bytes:
        if len(slow[0].applied) == 2:
            assert ClosesAtTheEnd.gone.wait(20), "the run did not finish"
        return close()

    party = Party(slow, backend=ClosesAtTheEnd, min_clients=1, total_steps=2, rounds_per_epoch=2)
    slow[0].full_digest = late_digest  # type: ignore[method-assign]  # an epoch's end that takes longer than the cooldown
    await party.play()

    assert party.failures == {}
    assert party.ended(0).success
    assert [event.epoch for event in party.events[0] if isinstance(event, telemetry.EpochDigest)] == [0]


class Deaf(MemoryBackend):
    """Takes a withdrawal and never answers it."""

    asked = 0

    async def send(self, command: Command, *, timeout: float) -> None:
        if isinstance(command, Withdraw):
            Deaf.asked += 1
            await anyio.sleep_forever()

        await super().send(command, timeout=timeout)


async def test_a_withdrawal_without_an_answer_is_waited_for_so_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "WITHDRAW_TIMEOUT", 0.2)
    party = Party(trainers(1), min_clients=1, backend=Deaf)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(party.member, 0)
        while not party.coordinator.state.pending:
            await anyio.sleep(0.01)
        started = anyio.current_time()
        party.runtimes[0].leave()

    assert Deaf.asked == 1
    assert anyio.current_time() - started >= 0.2
    assert party.ended(0) == telemetry.Ended("left the run as asked", success=True)


async def leave_after(party: Party, index: int, step: int) -> None:
    """Ask a member to leave as soon as it has trained a step."""
    while not any(isinstance(event, telemetry.StepTrained) and event.step == step for event in party.events[index]):
        await anyio.sleep(0.01)
    party.runtimes[index].leave()


@pytest.mark.slow
async def test_who_leaves_loses_nothing_it_trained() -> None:
    """Its last result is served until it is settled; the leaver ends with success and the others apply it."""
    party = Party(trainers(3), patient=True, total_steps=6, rounds_per_epoch=6)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(party.play)
        tasks.start_soon(leave_after, party, 2, 2)

    assert party.ended(2) == telemetry.Ended("left the run as asked", success=True)
    assert party.failures == {}
    staying = party.trainers[:2]
    assert staying[0].applied == staying[1].applied
    assert [step for step, _ in staying[0].applied] == [1, 2, 3, 4, 5, 6]
    assert [count for step, count in staying[0].applied if step in (1, 2)] == [3, 3]
    assert {trainer.weights for trainer in staying} == {staying[0].weights}


class TurnsAway(MemoryBackend):
    """Lets nobody in."""

    async def join(self, address: bytes, *, timeout: float) -> None:
        raise CommandRefused("NotAllowed", "your key is not on the list")


async def test_who_is_turned_away_ends_with_the_reason() -> None:
    party = Party(trainers(1), backend=TurnsAway, min_clients=1)
    await party.member(0)
    assert party.ended(0) == telemetry.Ended("your key is not on the list", success=False)
