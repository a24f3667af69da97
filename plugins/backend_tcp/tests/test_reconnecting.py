"""A client's connection is lost, or not there yet: how long it is tried, what is said, and what a key that returns gets."""

from __future__ import annotations

import logging
import re
import socket
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import anyio
import pytest

from plugins.backend_tcp.tests.connection_parts import TIMEOUT, bye_of
from psyche_backend_tcp.client.connection import TcpBackend
from psyche_backend_tcp.connections.addresses import parse_address
from psyche_backend_tcp.connections.dialer import dial
from psyche_backend_tcp.connections.login import COORDINATOR
from psyche_backend_tcp.limits import Limits
from psyche_backend_tcp.protocol import Heartbeat, encode_client
from psyche_backend_tcp.server.tcp_server import TcpServer
from psyche_core.coordinator.commands import Event
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import (
    AccessRefused,
    BackendClosed,
    BackendError,
    KeyUsedElsewhere,
    UnknownHost,
    UserError,
)
from psyche_core.hookspecs import BackendContext, ServerContext
from psyche_core.testing.backend import small_state, until
from psyche_core.wire.signing import SecretKey


async def test_b25_a_second_client_with_the_key_of_one_that_answers_is_refused(
    serving: Any, client: Any, keys: list[SecretKey]
) -> None:
    """It ended the first, which was healthy. Both are users' mistakes, exit code 2, but only the newcomer made one."""
    async with serving(limits=Limits(reconnect_seconds=0)) as server, client(server, keys[0]) as older:
        await older.join(b"here", timeout=TIMEOUT)
        with pytest.raises(KeyUsedElsewhere, match=r"^another client takes part.*; each client needs a key of its own") as no:
            async with client(server, keys[0]):
                pytest.fail("it is refused before it opens its transport, which has the same key")
        assert isinstance(no.value, UserError)
        await older.join(b"still here", timeout=TIMEOUT)
        assert (older.reconnects, server.state.pending) == (0, (older.identity,))
        assert server._hub._key_records.addresses({older.identity.signer}) == {older.identity.signer: b"still here"}


async def test_of_two_that_start_at_once_with_one_key_exactly_one_takes_part(
    serving: Any, client: Any, keys: list[SecretKey]
) -> None:
    """Neither has a connection yet when the other one's key is looked at."""
    joined: list[TcpBackend] = []
    refusals: list[str] = []
    looked_at: list[bytes] = []
    both, done = anyio.Event(), anyio.Event()
    async with serving() as server, anyio.create_task_group() as group:

        async def look_at_both(public: bytes) -> None:
            await server._sessions.check_key(public)
            looked_at.append(public)
            if len(looked_at) == 2:
                both.set()
            await both.wait()

        server._bound()._welcome = look_at_both

        async def take_part() -> None:
            try:
                async with client(server, keys[0]) as backend:
                    await backend.join(b"here", timeout=TIMEOUT)
                    joined.append(backend)
                    await done.wait()
            except KeyUsedElsewhere as refused:
                refusals.append(str(refused))
                done.set()

        with anyio.fail_after(TIMEOUT):
            group.start_soon(take_part)
            group.start_soon(take_part)
            await done.wait()
    (refusal,) = refusals
    assert refusal.startswith("another client takes part"), "the one that was in first stays"
    assert len(joined) == 1


async def test_b25_a_login_takes_the_place_of_a_connection_that_does_not_answer(
    serving: Any, client: Any, raw: Any, login: Any, keys: list[SecretKey]
) -> None:
    """As after a lost line. The end of the older connection withdraws nobody."""
    limits = Limits(reconnect_seconds=0, probe_seconds=0.05)
    async with serving(limits=limits) as server:
        silent = await raw(server.address)
        await login(silent, keys[0], server)
        async with client(server, keys[0]) as newer:
            await newer.join(b"here", timeout=TIMEOUT)
            assert await bye_of(silent) == "Replaced"
            with anyio.fail_after(TIMEOUT):
                await server._sessions.until(lambda: server.connected == 1)
            assert server.state.pending == (newer.identity,)
        with anyio.fail_after(TIMEOUT):
            await server._sessions.until(lambda: not server.connected)
        assert server.state.pending == ()


@pytest.mark.parametrize("pongs", [0, 1], ids=["silent", "its last words arrive late"])
async def test_a_client_that_is_killed_and_started_again_at_once_gets_in(
    serving: Any, client: Any, raw: Any, login: Any, keys: list[SecretKey], pongs: int
) -> None:
    """It need not wait until the server has missed the first one. A pong that nobody asked for now proves nothing."""
    async with serving(limits=Limits(probe_seconds=10 * TIMEOUT)) as server:
        killed = await raw(server.address)
        await login(killed, keys[0], server)
        if pongs:
            server._hub.ping(server._hub.connection_of(keys[0].public), server._now())

        async def kill() -> None:
            await server._sessions.until(lambda: any(each.pings > pongs for each in server._hub._connections.values()))
            for _ in range(pongs):
                await killed.send(encode_client(Heartbeat()))
            await killed.aclose()

        with anyio.fail_after(TIMEOUT):
            async with anyio.create_task_group() as group:
                group.start_soon(kill)
                async with client(server, keys[0]) as newer:
                    await newer.join(b"here", timeout=TIMEOUT)
                    assert server.state.pending == (newer.identity,)


async def test_a_client_that_lost_its_line_leaves_its_key_to_who_uses_it_now(
    serving: Any, client: Any, keys: list[SecretKey]
) -> None:
    async with serving() as server, client(server, keys[0]) as now:
        await now.join(b"here", timeout=TIMEOUT)
        lost = await dial(parse_address(server.address), service=COORDINATOR, key=keys[1], run_id=None, timeout=TIMEOUT)
        await lost.frames.aclose()
        before = client(server, keys[0])
        await before._run(lost)  # it connects again, by its own key
        with pytest.raises(KeyUsedElsewhere, match=r"^another client takes part"):
            await until(before, lambda _: False)
        assert now.reconnects == 0


async def test_that_the_coordinator_is_back_is_said_once_with_how_long_it_was_away(
    serving: Any, client: Any, keys: list[SecretKey], caplog: Any
) -> None:
    async with serving() as server, client(server, keys[0]) as backend:
        await backend.join(b"here", timeout=TIMEOUT)
        await backend._connection.frames.aclose()
        await backend.join(b"there", timeout=TIMEOUT)
    lost, back = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert re.fullmatch(r"lost the coordinator at 127\.0\.0\.1:\d+: the connection was closed; trying to reconnect", lost)
    assert re.fullmatch(r"connected to the coordinator at 127\.0\.0\.1:\d+ again after \d+ s", back)


async def test_reconnects_keeps_membership_and_joins_again(serving: Any, client: Any, keys: list[SecretKey]) -> None:
    withdrawals: list[CoordinatorState] = []

    def watch(state: CoordinatorState, _: tuple[Event, ...]) -> None:
        if not state.pending:
            withdrawals.append(state)

    async with serving(on_event=watch) as server, client(server, keys[0]) as backend:
        await backend.join(b"here", timeout=TIMEOUT)
        for _ in range(3):
            before = backend.reconnects
            await backend._connection.frames.aclose()
            await backend.join(b"here", timeout=TIMEOUT)
            assert backend.reconnects == before + 1
        assert server.state.pending == (backend.identity,)
        assert withdrawals == []


async def test_join_is_repeated_at_a_restarted_server(client: Any, clock: Any, keys: list[SecretKey]) -> None:
    context = ServerContext(state=small_state(), key=keys[2])
    async with TcpServer(context, clock=clock) as first, anyio.create_task_group() as group:
        group.start_soon(first.serve)
        async with client(first, keys[0]) as backend:
            await backend.join(b"here", timeout=TIMEOUT)
            port = parse_address(first.address).port
            await first.aclose()
            second = TcpServer(ServerContext(state=small_state(), port=port, key=keys[2]), clock=clock)
            async with second, anyio.create_task_group() as inner:
                inner.start_soon(second.serve)
                with anyio.fail_after(TIMEOUT):
                    await second._sessions.until(lambda: bool(second.state.pending))
                assert second.state.pending == (backend.identity,)
                inner.cancel_scope.cancel()


async def test_gone_server_ends_the_backend_after_its_retries(client: Any, clock: Any, keys: list[SecretKey]) -> None:
    async with TcpServer(ServerContext(state=small_state()), clock=clock) as server, anyio.create_task_group() as group:
        group.start_soon(server.serve)
        async with client(server, keys[0], retry_seconds=0.3) as backend:
            await until(backend, lambda _: True)
            await server.aclose()
            with anyio.fail_after(TIMEOUT):
                with pytest.raises(BackendClosed, match=r"did not come back within 0\.3 s"):
                    await backend.join(b"here", timeout=TIMEOUT)
                with pytest.raises(BackendClosed):
                    await backend.next_state()


def at(address: str, key: SecretKey, *, retry_seconds: float) -> TcpBackend:
    return TcpBackend(BackendContext(run_id="conformance", address=address, key=key, retry_seconds=retry_seconds))


@pytest.mark.parametrize(("seconds", "tried"), [(0, ""), (0.3, r"tried for 0\.3 s; ")])
async def test_nobody_listening_is_one_clear_sentence(keys: list[SecretKey], seconds: float, tried: str) -> None:
    async with TcpServer(ServerContext(state=small_state())) as server:
        address = server.address
    said = f"^cannot connect to {parse_address(address)}: Connection refused; {tried}check that the server runs"
    with pytest.raises(BackendError, match=said) as failed:
        async with at(address, keys[0], retry_seconds=seconds):
            pass
    assert not isinstance(failed.value, UserError), "the server may come up later"


async def test_a_server_that_comes_up_later_is_waited_for(clock: Any, keys: list[SecretKey], caplog: Any) -> None:
    async with TcpServer(ServerContext(state=small_state(), key=keys[2])) as server:
        address = server.address
    port = parse_address(address).port

    async def enter() -> None:
        async with at(address, keys[0], retry_seconds=60) as backend:
            await until(backend, lambda _: True)
            group.cancel_scope.cancel()

    with anyio.fail_after(TIMEOUT):
        async with anyio.create_task_group() as group:
            group.start_soon(enter)
            while not caplog.messages:
                await anyio.sleep(0.01)
            late = TcpServer(ServerContext(state=small_state(), port=port, key=keys[2]), clock=clock)
            async with late:
                await late.serve()
    (told,) = caplog.messages
    assert told.startswith(f"cannot connect to 127.0.0.1:{port}: Connection refused; the server may not be up yet: trying again ")
    assert re.search(r"until \d\d:\d\d:\d\d, for 60 s in all$", told)


async def test_a_full_server_is_waited_for(serving: Any, client: Any, keys: list[SecretKey], caplog: Any) -> None:
    async with serving(limits=Limits(max_connections=1)) as server, AsyncExitStack() as first:
        await first.enter_async_context(client(server, keys[0]))
        async with anyio.create_task_group() as group:

            async def leave_when_the_other_waits() -> None:
                while not any("Busy" in message for message in caplog.messages):
                    await anyio.sleep(0.01)
                await first.aclose()

            group.start_soon(leave_when_the_other_waits)
            with anyio.fail_after(TIMEOUT):
                async with client(server, keys[1], retry_seconds=60):
                    group.cancel_scope.cancel()
    assert "may not be up" not in caplog.text


async def test_what_the_user_can_mend_is_not_waited_for(serving: Any, keys: list[SecretKey], caplog: Any) -> None:
    async with serving() as server:
        place = str(parse_address(server.address))
        for address, run_id, code in (
            (place + "#" + keys[2].public.hex(), "conformance", "WrongServer"),
            (server.address, "elsewhere", "WrongRun"),
        ):
            context = BackendContext(run_id=run_id, address=address, key=keys[0], retry_seconds=1000)
            with anyio.fail_after(TIMEOUT), pytest.raises(AccessRefused) as refused:
                async with TcpBackend(context):
                    pass
            assert refused.value.code == code
            assert isinstance(refused.value, UserError)

    with anyio.fail_after(TIMEOUT), pytest.raises(UnknownHost, match=r"^cannot connect to no-such\.\.host:1: .*; check the host"):
        async with at("no-such..host:1#insecure", keys[0], retry_seconds=1000):  # no name server needs to be asked
            pass
    assert not caplog.messages


async def test_a_member_whose_server_s_name_is_gone_for_a_while_comes_back(
    serving: Any, client: Any, keys: list[SecretKey], monkeypatch: Any
) -> None:
    """Once it was known, it is no slip of the user's."""
    looked_up = socket.getaddrinfo
    asked = 0

    def forgotten(*args: Any, **kwargs: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked <= 2:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return looked_up(*args, **kwargs)

    async with serving() as server, client(server, keys[0], retry_seconds=60) as backend:
        await until(backend, lambda _: True)
        monkeypatch.setattr(socket, "getaddrinfo", forgotten)
        backend._dialer._address = replace(backend._address, host="localhost")  # looked up, as 127.0.0.1 is not
        assert backend._connection is not None
        await backend._connection.frames.aclose()
        with anyio.fail_after(TIMEOUT):
            await backend.join(b"here", timeout=TIMEOUT)
    assert backend.reconnects >= 1
    assert asked > 2
