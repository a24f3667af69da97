"""The server over real sockets: who gets in, what is sent, and what it survives."""

from __future__ import annotations

import contextlib
import logging
import secrets
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import anyio
import pytest
from blockbuster import blockbuster_ctx

from plugins.backend_tcp.tests.connection_parts import LOST, TIMEOUT, bye_of
from psyche_backend_tcp.client.session import Received
from psyche_backend_tcp.connections.addresses import parse_address
from psyche_backend_tcp.connections.login import COORDINATOR, Login, decode_hello, encode_login
from psyche_backend_tcp.limits import CLIENT_FRAME, LOGIN_FRAME, Limits
from psyche_backend_tcp.protocol import Answer, JoinRequest, WholeRequest, encode_client
from psyche_backend_tcp.server.tcp_server import TcpServer
from psyche_core.coordinator.commands import Event, Pause, RunFinished, WarmupWitness, Withdraw, Witness
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import (
    BackendClosed,
    CommandRefused,
    CoordinatorError,
    UserError,
)
from psyche_core.hookspecs import BackendContext, ServerContext
from psyche_core.testing.backend import in_phase, small_state, until
from psyche_core.types import EvaluationScore, NodeIdentity, RunState, WitnessMetadata, WitnessStatement, bitmap
from psyche_core.wire.signing import SecretKey


async def check_alive(server: TcpServer, client: Any, key: SecretKey) -> None:
    """The server still answers honest clients."""
    with anyio.fail_after(TIMEOUT):
        async with client(server, key) as backend:
            await backend.join(b"here", timeout=TIMEOUT)
            assert backend.identity in (await until(backend, lambda update: bool(update.state.pending))).state.pending


async def test_wrong_signature_replay_and_garbage_do_not_get_in(
    serving: Any, client: Any, raw: Any, keys: list[SecretKey]
) -> None:
    async with serving() as server:
        forged = await raw(server.address)
        hello = decode_hello(await forged.receive(), service=COORDINATOR)
        server_key = parse_address(server.address).key
        assert server_key is not None
        answer = encode_login(hello, Login(keys[0].public, bytes(32)), keys[0], run_id="conformance", server_key=server_key)
        await forged.send(answer[:-1] + bytes([answer[-1] ^ 1]))
        assert await bye_of(forged) == "BadSignature"

        replayed = await raw(server.address)
        await replayed.receive()
        await replayed.send(answer)
        assert await bye_of(replayed) == "BadSignature"

        for garbage in (b"\xff" * 50, b"GET / HTTP/1.1\r\n\r\n"):
            frames = await raw(server.address)
            await frames.receive()
            await frames.send(garbage)
            assert await bye_of(frames) == "BadLogin"

        plain = await raw(server.address)
        await plain._stream.send(b"GET / HTTP/1.1\r\n\r\n" * 10)  # as a length: far over the limit
        await plain.receive()
        assert await bye_of(plain) in ("BadLogin", None)
        for nonsense in (b"GET / HTTP/1.1\r\n\r\n", secrets.token_bytes(5000), b"\x16\x03\x01\xff\xff"):
            address = parse_address(server.address)
            async with await anyio.connect_tcp(address.host, address.port) as stranger:  # no TLS at all
                await stranger.send(nonsense)
                await stranger.send_eof()
                with anyio.fail_after(TIMEOUT), contextlib.suppress(*LOST):
                    while True:
                        await stranger.receive()
        assert server.connected == 0
        await check_alive(server, client, keys[1])


async def test_wrong_run_is_refused_with_both_names(serving: Any, client: Any, keys: list[SecretKey]) -> None:
    async with serving() as server:
        with pytest.raises(CommandRefused, match="'conformance', you asked for 'elsewhere'") as refused:
            async with client(server, keys[0], run_id="elsewhere"):
                pass
        assert refused.value.code == "WrongRun"


@pytest.mark.parametrize("size", [LOGIN_FRAME + 1, 2**32 - 1])
async def test_oversized_login_frame_is_refused_at_its_length(serving: Any, raw: Any, size: int) -> None:
    async with serving() as server:
        frames = await raw(server.address)
        await frames.receive()
        await frames._stream.send(size.to_bytes(4, "big"))
        assert await bye_of(frames) == "BadLogin"


async def test_oversized_frame_after_the_login_ends_only_that_connection(
    serving: Any, client: Any, raw: Any, login: Any, keys: list[SecretKey]
) -> None:
    async with serving() as server:
        frames = await raw(server.address)
        await login(frames, keys[0], server)
        await frames._stream.send((CLIENT_FRAME + 1).to_bytes(4, "big"))
        assert await bye_of(frames) == "BadMessage"
        await check_alive(server, client, keys[1])


async def test_half_open_connection_is_closed_in_time(serving: Any, raw: Any) -> None:
    async with serving(limits=Limits(handshake_seconds=0.05)) as server:
        silent = await raw(server.address)
        halfway = await raw(server.address)
        await halfway._stream.send(b"\0\0")
        await silent.receive()
        await halfway.receive()
        assert await bye_of(silent) is None
        assert await bye_of(halfway) is None


async def test_connections_beyond_the_limit_are_told(serving: Any, client: Any, keys: list[SecretKey]) -> None:
    async with serving(limits=Limits(max_connections=1)) as server, client(server, keys[0]):
        with pytest.raises(CommandRefused, match=r"Busy.*no free place now"):
            async with client(server, keys[1], retry_seconds=0):
                pass


async def test_a_refusal_that_comes_too_late_to_matter_is_a_detail(
    serving: Any, client: Any, keys: list[SecretKey], caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG, "psyche.backend.tcp")
    async with serving() as server, client(server, keys[0]) as backend:
        backend._take_in(Received(answer=Answer(1, "InvalidWitness", "too late")), deque())
    (record,) = [record for record in caplog.records if "too late" in record.getMessage()]
    assert record.levelno == logging.DEBUG


async def test_port_in_use_and_bad_host_are_one_clear_sentence() -> None:
    async with TcpServer(ServerContext(state=small_state())) as server:
        port = parse_address(server.address).port
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}: .*in use; choose another"):
            async with TcpServer(ServerContext(state=small_state(), port=port)):
                pass
    with pytest.raises(UserError, match=r"cannot listen on 203\.0\.113\.77:0: "):
        async with TcpServer(ServerContext(state=small_state(), host="203.0.113.77")):
            pass


ONLY_IPV6 = """
ip link set lo up && ip link add near type veth peer name far && ip link set near up && ip link set far up || exit 77
until ip -6 address show dev near | grep -q fe80; do sleep 0.01; done
exec "$@"
"""

LISTEN = """
import anyio
from psyche_backend_tcp.limits import Limits
from psyche_backend_tcp.connections.listener import Listener
from psyche_core.wire.signing import SecretKey

async def main():
    for host in ("127.0.0.1", "::1"):
        listener = await Listener.bind(host, 0, service="coordinator", run_id="any", key=SecretKey(bytes(32)), limits=Limits())
        print(listener.address.partition("#")[0].rpartition(":")[0])

anyio.run(main)
"""


@pytest.mark.skipif(shutil.which("unshare") is None or shutil.which("ip") is None, reason="needs unshare and ip")
def test_a_machine_without_ipv4_listens_on_its_loopback_address() -> None:
    """The system's look-up says of 127.0.0.1 that such a machine does not support it."""
    command = ["unshare", "-rn", "sh", "-c", ONLY_IPV6, "sh", sys.executable, "-c", LISTEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode in (1, 77) and "Traceback" not in done.stderr:
        pytest.skip(f"no network namespace here: {done.stderr.strip()}")
    assert done.stdout.split() == ["127.0.0.1", "[::1]"], done.stderr


async def test_only_changes_are_sent(serving: Any, client: Any, keys: list[SecretKey]) -> None:
    ticks = 0

    class Counting(TcpServer):
        def tick(self) -> None:
            nonlocal ticks
            ticks += 1
            super().tick()

    server = Counting(ServerContext(state=small_state(), tick_seconds=0.001))
    async with server, anyio.create_task_group() as group:
        group.start_soon(server.serve)
        async with client(server, keys[0]) as watcher, client(server, keys[1]) as other:
            await until(watcher, lambda _: True)
            whole = watcher.bytes_received
            begin = ticks
            with anyio.fail_after(TIMEOUT):
                while ticks < begin + 50:
                    await server._sessions._changed.wait()
            assert watcher.bytes_received == whole
            await other.join(b"here", timeout=TIMEOUT)
            await until(watcher, lambda update: bool(update.addresses))
            assert 0 < watcher.bytes_received - whole < whole / 4
        group.cancel_scope.cancel()


async def test_finished_run_ends_serve_after_everybody_was_told(clock: Any, client: Any, keys: list[SecretKey]) -> None:
    state = small_state(clients=1)
    state = replace(state, run_state=RunState.Cooldown, progress=replace(state.progress, step=11))
    events: list[Event] = []
    server = TcpServer(
        ServerContext(state=state, tick_seconds=0.01, on_event=lambda _, new: events.extend(new)),
        clock=clock,
        limits=Limits(finish_seconds=0.2),
    )
    with anyio.fail_after(TIMEOUT):
        async with server, anyio.create_task_group() as group:
            group.start_soon(server.serve)
            async with client(server, keys[0]) as leaving, client(server, keys[1]) as staying:
                await until(leaving, lambda _: True)
                clock.now += 11
                await until(leaving, lambda update: update.state.run_state is RunState.Finished)
                await leaving.aclose()
                await until(staying, lambda update: update.state.run_state is RunState.Finished)
                with pytest.raises(BackendClosed, match="the run is finished"):
                    await staying.next_state()
    assert RunFinished(steps=10) in events


async def test_owner_pauses_through_submit(serving: Any, client: Any, keys: list[SecretKey]) -> None:
    async with serving() as server, client(server, keys[0]) as backend:
        server.submit(Pause())
        await until(backend, lambda update: update.state.run_state is RunState.Paused)
        with pytest.raises(CoordinatorError, match="Halted"):
            server.submit(Pause())


async def test_server_survives_whatever_is_thrown_at_it(
    serving: Callable[..., Any], client: Any, raw: Any, login: Any, keys: list[SecretKey]
) -> None:
    """Random bytes before and after the login, cut connections, and a watcher that raises."""

    def broken(_: CoordinatorState, __: tuple[Event, ...]) -> None:
        message = "a display fails"
        raise RuntimeError(message)

    async with serving(on_event=broken, limits=Limits(reconnect_seconds=0, logins_per_second=1e9)) as server:
        for number in range(60):
            frames = await raw(server.address)
            if number % 2:
                await login(frames, keys[0], server)
            try:
                for _ in range(number % 5):
                    data = secrets.token_bytes(1 + number)
                    await (frames.send(data) if number % 3 else frames._stream.send(data))
                if number % 7 == 1:
                    await frames.send(encode_client(JoinRequest(number, b"x", bytes(64))))
            except LOST:
                pass
            await frames.aclose()
        await check_alive(server, client, keys[1])


async def test_a_peer_that_does_not_read_is_dropped_and_others_are_served(
    serving: Any, client: Any, raw: Any, login: Any, keys: list[SecretKey]
) -> None:
    crowd = tuple(NodeIdentity(number.to_bytes(32, "big"), bytes(32)) for number in range(200))
    state = replace(small_state(clients=256), pending=crowd)
    limits = Limits(send_seconds=0.1, requests_per_second=1e9, burst=1e9, bytes_per_second=1e9)
    async with serving(state=state, limits=limits) as server:
        frames = await raw(server.address)
        await login(frames, keys[0], server)
        whole = encode_client(WholeRequest())
        with anyio.move_on_after(TIMEOUT) as scope:
            try:
                while True:
                    await frames.send(*[whole] * 100)
            except LOST:
                scope.cancel()
        assert not scope.deadline < anyio.current_time(), "it was not dropped"
        await frames.aclose()
        await check_alive(server, client, keys[1])


async def test_the_loop_is_never_blocked(serving: Any, client: Any, keys: list[SecretKey]) -> None:
    with blockbuster_ctx():
        async with serving() as server, client(server, keys[0]) as first, client(server, keys[1]) as second:
            await first.join(b"1", timeout=TIMEOUT)
            await second.join(b"2", timeout=TIMEOUT)
            await until(first, lambda update: len(update.addresses) == 2)
            await first.send(Withdraw(first.identity), timeout=TIMEOUT)
            await first._connection.frames.aclose()
            await first.join(b"1", timeout=TIMEOUT)


async def test_answers_find_their_own_requests(serving: Any, client: Any, keys: list[SecretKey]) -> None:
    async with serving() as server, client(server, keys[0]) as backend:
        outcomes: dict[int, str] = {}

        async def ask(number: int) -> None:
            try:
                if number % 2:
                    await backend.join(b"%d" % number, timeout=TIMEOUT)
                else:
                    await backend.send(WarmupWitness(backend.identity, 0, 0, bytes(32)), timeout=TIMEOUT)
                outcomes[number] = "done"
            except CommandRefused as error:
                outcomes[number] = error.code

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(ask, number)
        assert outcomes == {number: "done" if number % 2 else "InvalidRunState" for number in range(20)}


async def test_unknown_address_text_is_a_user_error(keys: list[SecretKey]) -> None:
    from psyche_backend_tcp.client.connection import TcpBackend

    with pytest.raises(UserError, match="got 'nonsense'"):
        TcpBackend(BackendContext(run_id="r", address="nonsense", key=keys[0]))


async def test_figures_of_a_witness_reach_the_owner_once(serving: Any, client: Any, clock: Any, keys: list[SecretKey]) -> None:
    """Accepted statements only; who repeats one, or is refused, tells nothing."""
    told: list[tuple[bytes, WitnessMetadata]] = []
    figures = WitnessMetadata(1, 100.0, 200.0, 3.5, (EvaluationScore("arc_easy", "acc_norm", 0.5, 100, 1),))
    with anyio.fail_after(3 * TIMEOUT):
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(on_figures=lambda *each: told.append(each)))
            backends = [await stack.enter_async_context(client(server, key)) for key in keys[:2]]
            for number, backend in enumerate(backends):
                await backend.join(b"%d" % number, timeout=TIMEOUT)
            clock.now += 3
            for slot, backend in enumerate(backends):
                await until(backend, in_phase(RunState.Warmup))
                await backend.send(WarmupWitness(backend.identity, 0, slot, b"\1" * 32), timeout=TIMEOUT)
            state = (await until(backends[0], in_phase(RunState.RoundTrain))).state
            assert state.current_round is not None
            height = state.current_round.height
            statement = WitnessStatement(state.progress.epoch, height, 0, bitmap([]), bytes(320), bytes(32), bytes(32))
            for _ in range(2):
                with contextlib.suppress(CommandRefused):
                    await backends[0].send(Witness(backends[0].identity, statement, figures), timeout=TIMEOUT)
            with pytest.raises(CommandRefused):
                await backends[1].send(Witness(backends[1].identity, statement, figures), timeout=TIMEOUT)
    assert told == [(backends[0].identity.signer, figures)]
