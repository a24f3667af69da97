"""The shell around the machine: what it does when its backend, its transport or its trainer misbehaves."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import anyio
import pytest

from party import INSTANCE, ChainTrainer, Party, trainers
from psyche_core.builtin.memory_backend import MemoryBackend
from psyche_core.builtin.memory_transport import MemoryTransport
from psyche_core.client.machine import actions as act
from psyche_core.client.machine.machine import Timeouts
from psyche_core.client.runtime import coordinator_requests, event_queue, message_reader
from psyche_core.client.runtime.reports import network_reporter
from psyche_core.client.runtime.runtime import ClientRuntime
from psyche_core.coordinator.commands import Command, Witness
from psyche_core.errors import CommandRefused
from psyche_core.interfaces.backend import StateUpdate
from psyche_core.interfaces.transport import Opened
from psyche_core.telemetry import events as telemetry
from psyche_core.types import RunState
from psyche_core.wire.messages import Finished, Message, seal, unseal
from psyche_core.wire.signing import SecretKey


@pytest.mark.slow
async def test_a_quiet_party_applies_everything() -> None:
    party = Party(trainers())
    await party.play()

    assert [trainer.applied for trainer in party.trainers] == [[(step, 3) for step in range(1, 7)]] * 3
    assert len({trainer.weights for trainer in party.trainers}) == 1
    assert all(party.ended(index).success for index in range(3))


@pytest.mark.slow
async def test_a_payload_that_does_not_fit_is_left_out_by_everybody() -> None:
    members = [*trainers(3), ChainTrainer("liar", bad=(2,))]
    party = Party(members, total_steps=4, rounds_per_epoch=4)
    await party.play()

    honest = party.trainers[:3]
    assert len({trainer.weights for trainer in honest}) == 1
    assert dict(honest[0].applied)[2] == 3
    refused = [event for event in party.events[0] if isinstance(event, telemetry.Problem) and "refused" in event.message]
    assert refused


@pytest.mark.slow
async def test_a_share_that_cannot_be_trained_is_told_and_comes_again() -> None:
    members = [*trainers(3), ChainTrainer("broken", broken=(2,))]
    party = Party(members, total_steps=4, rounds_per_epoch=4)
    await party.play()

    told = [event.message for event in party.events[3] if isinstance(event, telemetry.Problem)]
    assert any("step 2 was not trained: the gradient is not finite" in message for message in told)
    assert len({trainer.weights for trainer in party.trainers[:3]}) == 1
    assert party.coordinator.state.run_state is RunState.Finished


async def test_garbage_from_a_peer_reaches_nobody() -> None:
    """Bytes that are no envelope, and an envelope of another run, are dropped; the client goes on."""
    party = Party(trainers(2), min_clients=2)
    stranger = SecretKey.generate()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(party.member, 0)
        tasks.start_soon(party.member, 1)
        while len(party.transports) < 2 or not party.transports[0].stats.peers:
            party.coordinator.tick()
            await anyio.sleep(0.05)
        for garbage in (
            b"",
            b"\xff" * 100,
            seal(stranger, bytes(32), Finished(0, 0, 0)),
            seal(stranger, INSTANCE, Finished(0, 0, 0)),
        ):
            await party.transports[1].broadcast(garbage, tag=0)
        party.runtimes[0].leave()
        party.runtimes[1].leave()

    assert party.ended(0).success
    assert party.ended(1).success


class Unchecked(MemoryTransport):
    """A transport of before there were checks."""

    def check_messages(self, check: Callable[[bytes], Opened]) -> None:
        """Not here."""


@pytest.mark.parametrize("transport", [MemoryTransport, Unchecked])
async def test_each_message_is_opened_once_and_garbage_is_told_now_and_then(
    transport: type[MemoryTransport], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened: Counter[bytes] = Counter()

    def counted(data: bytes, *, run: bytes) -> tuple[bytes, Message]:
        opened[data] += 1
        return unseal(data, run=run)

    monkeypatch.setattr(message_reader, "unseal", counted)
    caplog.set_level(logging.WARNING, logger="psyche.client")
    party = Party(trainers(2), min_clients=2)
    party.transport = transport

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(party.member, 0)
        tasks.start_soon(party.member, 1)
        while len(party.transports) < 2 or not party.transports[0].stats.peers:
            party.coordinator.tick()
            await anyio.sleep(0.05)
        for number in range(50):
            await party.transports[1].broadcast(b"%d" % number, tag=0)
        last = seal(SecretKey.generate(), INSTANCE, Finished(0, 0, 0))
        await party.transports[1].broadcast(last, tag=0)
        while not opened[last] and transport is Unchecked:
            await anyio.sleep(0.05)
        party.runtimes[0].leave()
        party.runtimes[1].leave()

    assert all(opened[b"%d" % number] == 1 for number in range(50))
    assert len(opened) > 50, "and what the members say themselves"
    assert all(count == 1 for count in opened.values())
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (1 if transport is Unchecked else 0)


async def test_a_message_lives_as_long_as_what_was_signed_says_whatever_tag_it_comes_with() -> None:
    party = Party(trainers(2), min_clients=2)
    author = SecretKey(hashlib.sha256(b"party\x01").digest())
    old, new = (seal(author, INSTANCE, Finished(0, height, 0)) for height in (19, 20))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(party.member, 0)
        tasks.start_soon(party.member, 1)
        while len(party.transports) < 2 or not party.transports[0].stats.peers:
            party.coordinator.tick()
            await anyio.sleep(0.05)
        await party.transports[0].expire(20)
        for message in (old, new):
            await party.transports[1].broadcast(message, tag=50)
        kept = {entry.message: entry.tag for entry in party.transports[0].live_messages()}
        party.runtimes[0].leave()
        party.runtimes[1].leave()

    assert old not in kept
    assert kept[new] == 20


class LosesTheFirstStatement(MemoryBackend):
    """Does not answer the first witness statement."""

    lost = 0

    async def send(self, command: Command, *, timeout: float) -> None:
        if isinstance(command, Witness) and not LosesTheFirstStatement.lost:
            LosesTheFirstStatement.lost += 1
            raise TimeoutError

        await super().send(command, timeout=timeout)


async def test_a_command_without_an_answer_is_sent_again() -> None:
    party = Party(trainers(1), backend=LosesTheFirstStatement, min_clients=1, total_steps=2, rounds_per_epoch=2)
    with anyio.fail_after(9):  # a lost statement would cost max_round_train_time, 10 s
        await party.play()

    assert LosesTheFirstStatement.lost == 1
    assert party.trainers[0].applied == [(1, 1), (2, 1)]


class Ponderous(ClientRuntime):
    """Takes its time over every event, so that the queue is full whenever anything arrives."""

    async def _carry_out_all(self, actions: list[act.Action]) -> None:
        await anyio.sleep(0.005)
        await super()._carry_out_all(actions)


async def test_when_the_queue_is_full_nothing_that_matters_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for one event, ticks that fill it faster than it is emptied, and a talkative peer: all the same all arrives."""
    monkeypatch.setattr(event_queue, "QUEUE_LENGTH", 1)
    monkeypatch.setattr(event_queue, "TICK_SECONDS", 0.002)
    party = Party(trainers(2), patient=True, total_steps=3, rounds_per_epoch=3)
    party.runtime = Ponderous
    talker = SecretKey(hashlib.sha256(b"party\x01").digest())

    async def talk() -> None:
        while 1 not in party.transports or not party.transports[1].stats.peers:
            await anyio.sleep(0.01)
        for number in range(60):
            await party.transports[1].broadcast(seal(talker, INSTANCE, Finished(0, 10**6 + number, 0)), tag=2**40)
            await anyio.sleep(0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(talk)
        await party.play()

    assert party.failures == {}
    assert [trainer.applied for trainer in party.trainers] == [[(step, 2) for step in (1, 2, 3)]] * 2
    assert all(party.ended(index).success for index in range(2))
    for told in party.events[:2]:
        assert [event.height for event in told if isinstance(event, telemetry.WitnessSent)] == [0, 1, 2, 3]


class SlowToTakeIn(MemoryBackend):
    """Does not answer the first three joins, then refuses one because it is full."""

    joins = 0

    async def join(self, address: bytes, *, timeout: float) -> None:
        SlowToTakeIn.joins += 1
        if SlowToTakeIn.joins <= 3:
            raise TimeoutError
        if SlowToTakeIn.joins == 4:
            raise CommandRefused("ClientsFull", "256 members are already waiting")

        await super().join(address, timeout=timeout)


async def test_a_coordinator_that_does_not_answer_is_told_once_and_waited_for() -> None:
    party = Party(trainers(1), backend=SlowToTakeIn, min_clients=1, total_steps=2, rounds_per_epoch=2)
    party.timeouts = Timeouts(peers=2.0, answer=0.3)
    await party.play()

    assert SlowToTakeIn.joins == 5
    told = [event.message for event in party.events[0] if isinstance(event, telemetry.Problem)]
    assert told == ["the coordinator has not answered for 10 s; still trying"]
    (mended,) = [event.message for event in party.events[0] if isinstance(event, telemetry.Mended)]
    assert re.fullmatch(r"the coordinator answers again, after \d+ s", mended)
    assert party.ended(0).success


class Moving(MemoryTransport):
    """Notes the relays it is given, and has an address that a test changes."""

    moved = b""

    @property
    def address(self) -> bytes:
        return self.moved or super().address

    async def use_relays(self, relays: Sequence[str]) -> None:
        Noting.noted.append(tuple(relays))


class Refused(MemoryTransport):
    """Has a problem that a test ends."""

    trouble: tuple[str, ...] = ("the relay needs a token; ask its owner for it",)

    @property
    def problems(self) -> tuple[str, ...]:
        return self.trouble


async def test_a_transport_s_problem_is_told_once_and_its_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_reporter, "TOTALS_SECONDS", 0.0)
    party = Party(trainers(1), min_clients=2)
    party.transport = Refused

    def told(kind: type[telemetry.Problem | telemetry.Mended]) -> list[str]:
        return [event.message for event in party.events[0] if isinstance(event, kind)]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(party.member, 0)
        with anyio.fail_after(20):
            while not party.transports or not told(telemetry.Problem):
                await anyio.sleep(0.02)
            await anyio.sleep(0.5)  # several more looks
            refused = party.transports[0]
            assert isinstance(refused, Refused)
            refused.trouble = ()
            while not told(telemetry.Mended):
                await anyio.sleep(0.02)
        party.runtimes[0].leave()
    assert told(telemetry.Problem) == list(Refused.trouble)
    assert told(telemetry.Mended) == ["the relay lets this client in"]


class Noting(MemoryBackend):
    """Notes the addresses that are published. Offers a relay."""

    noted: ClassVar[list[object]] = []

    async def join(self, address: bytes, *, timeout: float) -> None:
        await super().join(address, timeout=timeout)
        self.noted.append(address)

    async def next_state(self) -> StateUpdate:
        return replace(await super().next_state(), relays=("https://relay.example.org",))


async def test_relays_are_used_before_joining_and_a_new_address_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_requests, "REPUBLISH_SECONDS", 0.0)
    monkeypatch.setattr(network_reporter, "TOTALS_SECONDS", 0.0)
    Noting.noted.clear()
    party = Party(trainers(1), backend=Noting, min_clients=2)
    party.transport = Moving
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(party.member, 0)
        with anyio.fail_after(20):
            while len(Noting.noted) < 2:
                await anyio.sleep(0.02)
            first = Noting.noted[:2]
            moving = party.transports[0]
            assert isinstance(moving, Moving)
            assert first == [("https://relay.example.org",), moving.address]
            moving.moved = b"elsewhere"
            while Noting.noted[-1] != b"elsewhere":
                await anyio.sleep(0.02)
        party.runtimes[0].leave()
    assert Noting.noted[2:] == [b"elsewhere"]
