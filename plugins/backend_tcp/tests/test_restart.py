"""The server dies and comes back: nothing anybody was told is lost, clients continue, and little is sent again."""

from __future__ import annotations

import contextlib
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from plugins.backend_tcp.tests.restart_parts import SERVER_KEY, TIMEOUT, hosting, identity_of, port_of, proof_of
from psyche_backend_tcp.limits import Limits
from psyche_backend_tcp.protocol import Bye, Whole, decode_server
from psyche_backend_tcp.server.documents import Documents
from psyche_backend_tcp.server.hub import PendingSave
from psyche_backend_tcp.server.state_store import StateStore, state_file
from psyche_backend_tcp.server.tcp_server import TcpServer
from psyche_core.coordinator.commands import ClientsExited, Event, HealthCheck, WarmupWitness, Withdraw, Witness
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendClosed, CommandRefused, ConfigError
from psyche_core.hookspecs import LaterKnown, ServerContext
from psyche_core.interfaces.backend import ClientCommand, KnownPosition, TellsLater
from psyche_core.testing.backend import START_TIME, in_phase, small_state, until
from psyche_core.types import ClientState, RunState, WitnessStatement, bitmap
from psyche_core.wire.signing import SecretKey

LOST = (anyio.EndOfStream, anyio.BrokenResourceError)


def statement(state: CoordinatorState, slot: int) -> WitnessStatement:
    assert state.current_round is not None
    return WitnessStatement(state.progress.epoch, state.current_round.height, slot, bitmap([]), bytes(320), bytes(32), bytes(32))


async def test_41_clients_continue_in_the_same_round_after_a_restart(
    client: Any, clock: Any, tmp_path: Path, keys: list[SecretKey]
) -> None:
    """The reference kept members and epoch in memory only and its clients never came back (client defect 41)."""
    with anyio.fail_after(3 * TIMEOUT):
        async with AsyncExitStack() as stack:
            async with hosting(tmp_path, clock) as first:
                backends = [await stack.enter_async_context(client(first, key)) for key in keys[:2]]
                for number, backend in enumerate(backends):
                    await backend.join(b"%d" % number, timeout=TIMEOUT)
                clock.now += 3
                for slot, backend in enumerate(backends):
                    await until(backend, in_phase(RunState.Warmup))
                    await backend.send(WarmupWitness(backend.identity, 0, slot, b"\1" * 32), timeout=TIMEOUT)
                update = await until(backends[0], in_phase(RunState.RoundTrain))
                await backends[0].send(Witness(backends[0].identity, statement(update.state, 0)), timeout=TIMEOUT)
                before, port = first.state, port_of(first)
                assert before.current_round is not None
                assert len(before.current_round.statements) == 1
            clock.now += 7
            async with hosting(tmp_path, clock, port=port) as second:
                assert second.resumed
                assert second.continued_from == state_file(tmp_path, second.state.run_id)
                assert second.state == before
                await backends[1].send(Witness(backends[1].identity, statement(before, 1)), timeout=2 * TIMEOUT)
                update = await until(backends[0], lambda update: update.state.epoch.rounds[-1].height == 1)
                assert len(update.state.epoch.rounds[0].statements) == 2
                assert update.addresses == {backend.identity.signer: b"%d" % n for n, backend in enumerate(backends)}
                assert [backend.reconnects for backend in backends] == [1, 1]
                assert all(one.state is ClientState.Healthy for one in second.state.epoch.clients)


async def test_48_who_comes_back_is_sent_what_changed_and_nothing_else(
    client: Any, clock: Any, tmp_path: Path, keys: list[SecretKey]
) -> None:
    """The reference sent the whole state twice a second (client defect 48)."""
    with anyio.fail_after(3 * TIMEOUT):
        async with AsyncExitStack() as stack:
            async with hosting(tmp_path, clock) as first:
                watcher = await stack.enter_async_context(client(first, keys[0]))
                await watcher.join(b"here", timeout=TIMEOUT)
                await until(watcher, lambda update: bool(update.addresses))
                whole = watcher.bytes_received
                await watcher._connection.frames.aclose()
                await watcher.join(b"here", timeout=TIMEOUT)
                assert watcher.reconnects == 1
                again = watcher.bytes_received
                assert again < 300 < whole / 4, "hello, welcome and answers: the state was known"
                port = port_of(first)
            async with hosting(tmp_path, clock, port=port) as second:
                await watcher.join(b"here", timeout=2 * TIMEOUT)
                assert watcher.bytes_received < again + 20, "also after a restart"
                await watcher.join(b"there", timeout=TIMEOUT)
                await until(watcher, lambda update: update.addresses[keys[0].public] == b"there")
                assert watcher.bytes_received < again + 250, "an address and two hashes"
                assert second.state.pending == (watcher.identity,)


@pytest.mark.parametrize("joins_first", [True, False], ids=["still-a-member", "joins-after-telling"])
async def test_the_owner_is_told_what_a_members_disk_knows(
    client: Any, clock: Any, tmp_path: Path, keys: list[SecretKey], *, joins_first: bool
) -> None:
    """All programs were gone, and the whole folder is an older copy: only the disks of members know how far the run was."""
    told = list[LaterKnown]()
    heard = anyio.Event()

    def on_later_state(known: LaterKnown) -> None:
        told.append(known)
        heard.set()

    with anyio.fail_after(3 * TIMEOUT):
        async with hosting(tmp_path, clock) as first, client(first, keys[1]) as other:
            await other.join(b"other", timeout=TIMEOUT)
        async with hosting(tmp_path, clock, on_later_state=on_later_state) as second, client(second, keys[0]) as member:
            tells_later = isinstance(member, TellsLater)
            assert tells_later
            if joins_first:
                await member.join(b"here", timeout=TIMEOUT)
            member.tell_later(KnownPosition(0, 2, 72))
            await member.join(b"there", timeout=TIMEOUT)
            await heard.wait()
            path = state_file(tmp_path, second.state.run_id)
            assert told == [LaterKnown(epoch=2, step=72, path=path, member=keys[0].public)]


async def test_an_unknown_version_gets_the_whole_state(serving: Any, raw: Any, login: Any, keys: list[SecretKey]) -> None:
    async with serving() as server:
        frames = await raw(server.address)
        await login(frames, keys[0], server, known=b"?" * 32)
        assert isinstance(decode_server(await frames.receive()), Whole)
        await frames.aclose()


async def test_the_clock_stands_until_the_members_are_back(
    client: Any, clock: Any, tmp_path: Path, keys: list[SecretKey]
) -> None:
    """A phase whose time ran out while the server was away does not end before its members can speak."""
    with anyio.fail_after(3 * TIMEOUT):
        async with AsyncExitStack() as stack:
            async with hosting(tmp_path, clock) as first:
                backends = [await stack.enter_async_context(client(first, key)) for key in keys[:2]]
                for backend in backends:
                    await backend.join(b"here", timeout=TIMEOUT)
                clock.now += 3
                for slot, backend in enumerate(backends):
                    await until(backend, in_phase(RunState.Warmup))
                    await backend.send(WarmupWitness(backend.identity, 0, slot, b"\1" * 32), timeout=TIMEOUT)
                await until(backends[0], in_phase(RunState.RoundTrain))
                port = port_of(first)
            await backends[0].aclose()
            clock.now += 1000
            async with hosting(tmp_path, clock, port=port) as second:
                while not second.connected:
                    await anyio.sleep(0.01)
                for _ in range(5):
                    second.tick()
                assert second.state.run_state is RunState.RoundTrain
                async with client(second, keys[0]):
                    await until(backends[1], lambda update: update.state.run_state is not RunState.RoundTrain)


async def test_members_that_do_not_come_back_are_withdrawn_and_the_run_goes_on(
    client: Any, clock: Any, tmp_path: Path, keys: list[SecretKey]
) -> None:
    async with hosting(tmp_path, clock) as first, client(first, keys[0]) as one, client(first, keys[1]) as other:
        await one.join(b"here", timeout=TIMEOUT)
        await other.join(b"here", timeout=TIMEOUT)
    async with hosting(tmp_path, clock, limits=Limits(reopening_seconds=0.1, reconnect_seconds=0.05)) as second:
        assert len(second.state.pending) == 2
        with anyio.fail_after(TIMEOUT):
            await second._sessions.until(lambda: not second.state.pending)


async def test_another_configuration_is_refused_at_the_start(clock: Any, tmp_path: Path) -> None:
    async with hosting(tmp_path, clock) as first:
        first._hub.connect(identity_of(SERVER_KEY), first._now())
        first._hub._join(identity_of(SERVER_KEY), b"", first._now(), proof=proof_of(SERVER_KEY, first))
    with pytest.raises(ConfigError, match=r"config\.init_min_clients is 2 there and 3 in the run's file"):
        async with hosting(tmp_path, clock, state=small_state(clients=3)):
            pass


async def test_the_first_epochs_settings_end_with_the_first_round(
    client: Any, clock: Any, tmp_path: Path, keys: list[SecretKey]
) -> None:
    own = small_state(clients=2).config
    state = small_state(clients=1)
    async with hosting(tmp_path, clock, state=state, opening=own) as server, client(server, keys[0]) as backend:
        await backend.join(b"here", timeout=TIMEOUT)
        clock.now += 3
        update = await until(backend, in_phase(RunState.Warmup))
        assert update.state.config.init_min_clients == 1
        await backend.send(WarmupWitness(backend.identity, 0, 0, b"\1" * 32), timeout=TIMEOUT)
        update = await until(backend, in_phase(RunState.RoundTrain))
        assert update.state.config == own


async def test_why_a_member_is_withdrawn_is_told_before_that_it_is(
    serving: Any, client: Any, clock: Any, keys: list[SecretKey]
) -> None:
    told: list[object] = []
    gone = anyio.Event()

    def watch(_: CoordinatorState, events: tuple[Event, ...]) -> None:
        if any(isinstance(event, ClientsExited) for event in events):
            told.append("exited")
            gone.set()

    limits = Limits(reconnect_seconds=0)
    async with serving(
        state=small_state(clients=1), limits=limits, on_event=watch, on_withdrawn=lambda *why: told.append(why)
    ) as server:
        async with client(server, keys[0]) as backend:
            await backend.join(b"here", timeout=TIMEOUT)
            clock.now += 3
            await until(backend, in_phase(RunState.Warmup))
        with anyio.fail_after(TIMEOUT):
            await gone.wait()
    assert told == [(keys[0].public, "lost"), "exited"]


async def test_b6_a_member_that_comes_back_and_joins_once_is_not_forgotten(
    serving: Any, client: Any, clock: Any, keys: list[SecretKey]
) -> None:
    """In the reference every tick removed who had left the epoch from the waiting list, also after a new join (B6)."""
    async with (
        serving(state=small_state(clients=1), limits=Limits(reconnect_seconds=0)) as server,
        client(server, keys[1]) as other,
    ):
        await other.join(b"other", timeout=TIMEOUT)
        async with client(server, keys[0]) as leaving:
            await leaving.join(b"here", timeout=TIMEOUT)
            clock.now += 3
            await until(leaving, in_phase(RunState.Warmup))
        with anyio.fail_after(TIMEOUT):
            await server._sessions.until(lambda: len(server.state.healthy_slots) == 1)
        async with client(server, keys[0]) as back:
            await back.join(b"again", timeout=TIMEOUT)
            for _ in range(20):
                clock.now += 1
                server.tick()
                assert back.identity in server.state.pending
            update = await until(back, lambda update: update.addresses.get(keys[0].public) == b"again")
            assert update.state.slot_of(back.identity) is not None


async def test_s8_a_key_that_is_no_member_can_say_nothing_that_counts(
    serving: Any, client: Any, clock: Any, keys: list[SecretKey]
) -> None:
    """The reference took health checks and warmup witnesses from any connected key (S8)."""
    async with (
        serving(state=small_state(clients=1)) as server,
        client(server, keys[0]) as member,
        client(server, keys[1]) as stranger,
    ):
        await member.join(b"here", timeout=TIMEOUT)
        clock.now += 3
        await until(member, in_phase(RunState.Warmup))
        before = server.state
        refused_ones: tuple[ClientCommand, ...] = (
            WarmupWitness(stranger.identity, 0, 0, b"\1" * 32),
            WarmupWitness(stranger.identity, 0, 200, bytes(32)),
            HealthCheck(stranger.identity, (0,)),
            Withdraw(stranger.identity),
        )
        for command in refused_ones:
            with pytest.raises(CommandRefused) as refused:
                await stranger.send(command, timeout=TIMEOUT)
            assert refused.value.message
        assert server.state == before
        await member.send(WarmupWitness(member.identity, 0, 0, b"\1" * 32), timeout=TIMEOUT)
        update = await until(member, in_phase(RunState.RoundTrain))
        before = server.state
        refused_ones = (HealthCheck(stranger.identity, (0,)), Witness(stranger.identity, statement(update.state, 0)))
        for command in refused_ones:
            with pytest.raises(CommandRefused):
                await stranger.send(command, timeout=TIMEOUT)
        assert server.state == before


async def test_a_frame_sent_drop_by_drop_ends_the_connection(serving: Any, raw: Any, login: Any, keys: list[SecretKey]) -> None:
    limits = Limits(ping_seconds=0.1, silence_seconds=0.3)
    async with serving(limits=limits) as server:
        frames = await raw(server.address)
        await login(frames, keys[0], server)
        drops, codes = 0, []
        with anyio.fail_after(TIMEOUT):
            async with anyio.create_task_group() as group:

                async def drip() -> None:
                    nonlocal drops
                    with contextlib.suppress(*LOST):
                        while True:
                            await frames._stream.send(b"\0" if drops < 2 else b"\x0f")
                            drops += 1
                            await anyio.sleep(0.02)

                group.start_soon(drip)
                with contextlib.suppress(*LOST):
                    while True:
                        codes.append(decode_server(await frames.receive()))
                group.cancel_scope.cancel()
        (bye,) = [message for message in codes if isinstance(message, Bye)]
        assert bye.code == "Silent"
        assert server.connected == 0
        await frames.aclose()


async def test_a_server_with_a_new_key_is_not_followed(client: Any, clock: Any, tmp_path: Path, keys: list[SecretKey]) -> None:
    async with AsyncExitStack() as stack:
        async with hosting(tmp_path, clock) as first:
            backend = await stack.enter_async_context(client(first, keys[0], retry_seconds=1))
            await backend.join(b"here", timeout=TIMEOUT)
            port = port_of(first)
        async with hosting(tmp_path, clock, port=port, key=SecretKey(b"x" * 32)) as second:
            with anyio.fail_after(TIMEOUT), pytest.raises(BackendClosed, match=r"did not come back within 1 s: the server pro"):
                await until(backend, lambda _: False)
            assert second.connected == 0


@pytest.mark.parametrize("saved", [False, True], ids=["while it runs", "while it is away"])
async def test_a_clock_that_is_set_back_by_an_hour_lengthens_no_phase(tmp_path: Path, saved: bool) -> None:
    """A cooldown of five seconds lasted 3605 s. Here it is of one, of the machine's monotonic clock."""
    walls = iter([START_TIME] if not saved else [])
    beginning = small_state()
    beginning = replace(beginning, config=beginning.config.model_copy(update={"cooldown_time": 1}))
    state = replace(beginning, run_state=RunState.Cooldown, since=START_TIME)
    if saved:
        draft = Documents(beginning, {}).draft(state, {})
        assert draft is not None
        StateStore(tmp_path, state.run_id).save(PendingSave(1, draft, None))
    limits = Limits(reconnect_seconds=0.0)
    context = ServerContext(state=state, state_dir=tmp_path, tick_seconds=0.05)
    server = TcpServer(context, limits=limits, wall=lambda: next(walls, START_TIME - 3600.0))
    async with server, anyio.create_task_group() as group:
        group.start_soon(server.serve)
        with anyio.fail_after(30):
            await server._sessions.until(lambda: server.state.run_state is RunState.WaitingForMembers)
        assert START_TIME < server.state.since < START_TIME + 30
        group.cancel_scope.cancel()
    assert server.resumed is saved
    assert server.continued_from == (state_file(tmp_path, state.run_id) if saved else None)
