"""Crowds before the login, over real sockets: newcomers and members get in while others hold or flood the server's places."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from psyche_backend_tcp.client.connection import TcpBackend
from psyche_backend_tcp.connections.addresses import parse_address
from psyche_backend_tcp.connections.dialer import MOST_TRIES, dial
from psyche_backend_tcp.connections.login import COORDINATOR, DATA
from psyche_backend_tcp.connections.preamble import Challenged, ChallengeStream
from psyche_backend_tcp.connections.puzzle import PROOF_MAGIC, Cookies, Proof, encode_challenge, encode_proof, prove, solves
from psyche_backend_tcp.connections.tls import open_tls
from psyche_backend_tcp.limits import LOGIN_FRAME, SERVER_FRAME, Limits
from psyche_backend_tcp.protocol import Bye, decode_server
from psyche_backend_tcp.server.tcp_server import TcpServer
from psyche_core.builtin.dummy_data import DummyData
from psyche_core.errors import BackendError, CommandRefused
from psyche_core.hookspecs import BackendContext
from psyche_core.testing.backend import until
from psyche_core.wire.frames import FramedStream
from psyche_core.wire.signing import SecretKey

TIMEOUT = 20.0
NEVER = 1000.0
LOST = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
EASY: dict[str, Any] = {"puzzle_bits": 4, "puzzle_most_bits": 4}


async def opened(server: TcpServer, proof: bytes = b"") -> FramedStream:
    """A connection in TLS that does not log in. Raises Challenged."""
    address = parse_address(server.address)
    stream = await anyio.connect_tcp(address.host, address.port)
    try:
        if proof:
            await stream.send(proof)
        secure, _ = await open_tls(ChallengeStream(stream), expected=address.key)
    except BaseException:
        await stream.aclose()
        raise

    return FramedStream(secure, receive_limit=LOGIN_FRAME, send_limit=SERVER_FRAME)


async def challenge(server: TcpServer) -> bytes:
    """The cookie of a server whose places are taken."""
    with pytest.raises(Challenged) as challenged:
        await opened(server)
    return challenged.value.cookie


async def ended(frames: FramedStream) -> bool:
    """Wait until the server has closed a connection."""
    with anyio.fail_after(TIMEOUT), suppress(*LOST):
        while True:
            await frames.receive()
    return True


async def joined(client: Callable[..., TcpBackend], server: TcpServer, key: SecretKey) -> None:
    with anyio.fail_after(TIMEOUT):
        async with client(server, key) as backend:
            await backend.join(b"here", timeout=TIMEOUT)
            await until(backend, lambda update: backend.identity in update.state.pending)


@asynccontextmanager
async def holding(server: TcpServer, count: int, *, work: bool = False) -> AsyncIterator[list[FramedStream]]:
    """Connections that hold places, each with a solved puzzle if `work`."""
    async with AsyncExitStack() as stack:
        held = []
        for _ in range(count):
            frames = await opened(server)
            stack.push_async_callback(frames.aclose)
            held.append(frames)
        for number in range(count if work else 0):
            proof = prove(await challenge(server), SecretKey.generate())
            held[number] = await opened(server, encode_proof(proof))
            stack.push_async_callback(held[number].aclose)
        yield held


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have 127.0.0.1 only")
@pytest.mark.parametrize("addresses", [1, 200])
async def test_newcomers_get_in_while_silent_connections_flood_the_server(serving: Any, client: Any, addresses: int) -> None:
    """None of them would ever leave by itself."""
    limits = Limits(max_silent=64, silent_seconds=NEVER, handshake_seconds=NEVER, max_unauthenticated=4)
    async with serving(limits=limits) as server, AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        target = parse_address(server.address)
        flooded = anyio.Event()

        async def flood() -> None:
            for number in itertools.count():
                sock = stack.enter_context(socket.socket())
                sock.bind((f"127.1.0.{1 + number % addresses}", 0))
                sock.setblocking(False)
                sock.connect_ex((target.host, target.port))
                if number == 2 * limits.max_silent:
                    flooded.set()
                await anyio.sleep(0.01)

        tasks.start_soon(flood)
        await flooded.wait()
        for _ in range(3):
            await joined(client, server, SecretKey.generate())
        assert server._bound().waiting <= limits.max_silent + limits.max_unauthenticated
        tasks.cancel_scope.cancel()


async def test_a_silent_connection_is_closed_in_time(serving: Any) -> None:
    async with serving(limits=Limits(silent_seconds=0.05, handshake_seconds=NEVER)) as server:
        address = parse_address(server.address)
        async with await anyio.connect_tcp(address.host, address.port) as stream:
            with anyio.fail_after(TIMEOUT), pytest.raises(anyio.EndOfStream):
                await stream.receive()


async def test_places_that_nobody_worked_for_go_to_who_did(serving: Any, client: Any, keys: list[SecretKey]) -> None:
    limits = Limits(max_unauthenticated=4, handshake_seconds=NEVER, **EASY)
    async with serving(limits=limits) as server, holding(server, 4) as held:
        await joined(client, server, keys[0])
        assert await ended(held[0])
        await (await opened(server)).aclose()  # its place is free again


async def test_places_held_by_solvers_go_to_who_solves_next(serving: Any, client: Any, keys: list[SecretKey]) -> None:
    limits = Limits(max_unauthenticated=2, handshake_seconds=NEVER, **EASY)
    async with serving(limits=limits) as server, holding(server, 2, work=True) as held:
        await joined(client, server, keys[0])
        assert await ended(held[0])


async def test_a_member_that_comes_back_finds_its_place_whatever_others_hold(
    serving: Any, client: Any, keys: list[SecretKey]
) -> None:
    """All places before the login are held by who worked for them, all those after it by strangers."""
    limits = Limits(max_unauthenticated=2, max_connections=2, handshake_seconds=NEVER, **EASY)
    async with serving(limits=limits) as server, client(server, keys[0]) as member:
        await member.join(b"here", timeout=TIMEOUT)
        async with client(server, keys[1]), client(server, keys[2]):
            with pytest.raises(CommandRefused, match="besides its members"):
                async with client(server, SecretKey.generate()):
                    pass
            async with holding(server, 2, work=True) as held:
                for count in range(1, 4):
                    await member._connection.frames.aclose()
                    await member.join(b"here", timeout=TIMEOUT)
                    assert member.reconnects == count
                assert server.state.pending == (member.identity,)
                for frames in held:  # who held the places still does, and is answered
                    await frames.receive()
                    await frames.send(b"?")
                    refusal = decode_server(await frames.receive())
                    assert isinstance(refusal, Bye)
                    assert refusal.code == "BadLogin"


async def test_nobody_takes_a_members_place_with_its_key_alone(serving: Any, client: Any, keys: list[SecretKey]) -> None:
    limits = Limits(max_unauthenticated=2, handshake_seconds=NEVER, puzzle_bits=12, puzzle_most_bits=12)
    async with serving(limits=limits) as server, client(server, keys[0]) as member, holding(server, 2):
        await member.join(b"here", timeout=TIMEOUT)
        cookie = await challenge(server)
        unsolved = next(n for n in range(100) if not solves(cookie, n))
        signature = prove(bytes([0]) + cookie[1:], keys[0]).signature  # of another cookie
        with pytest.raises(Challenged):
            await opened(server, encode_proof(Proof(cookie, unsolved, keys[0].public, signature)))


async def test_a_proof_is_good_for_one_connection(serving: Any) -> None:
    async with serving(limits=Limits(max_unauthenticated=2, handshake_seconds=NEVER, **EASY)) as server:
        async with holding(server, 2):
            proof = encode_proof(prove(await challenge(server), SecretKey.generate()))
            async with AsyncExitStack() as stack:
                stack.push_async_callback((await opened(server, proof)).aclose)
                for again in (proof, proof[:41] + bytes(8) + proof[49:]):
                    with pytest.raises(Challenged):
                        await opened(server, again)


async def test_who_drips_a_proof_or_says_something_else_is_closed(serving: Any, client: Any, keys: list[SecretKey]) -> None:
    async with serving(limits=Limits(silent_seconds=0.2)) as server:
        address = parse_address(server.address)
        for words in (b"psyche!\x01", b"psyche!\x02" + bytes(137), b"GET / HTTP/1.1\r\n\r\n", b"\0"):
            stream: SocketStream
            async with await anyio.connect_tcp(address.host, address.port) as stream:
                await stream.send(words)
                with anyio.fail_after(TIMEOUT), suppress(*LOST):
                    while True:
                        await stream.receive()
        await joined(client, server, keys[0])


FEW_FILES = """
import resource, anyio
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
from psyche_backend_tcp.connections.dialer import MOST_TRIES, dial
from psyche_backend_tcp.limits import Limits
from psyche_backend_tcp.server.tcp_server import TcpServer
from psyche_core.hookspecs import ServerContext
from psyche_core.testing.backend import small_state

LIMITS = Limits(silent_seconds=1000.0, handshake_seconds=1000.0)

async def main():
    async with TcpServer(ServerContext(state=small_state()), limits=LIMITS) as server:
        print(server.address, flush=True)
        await server.serve()

anyio.run(main)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file handles")
async def test_a_server_out_of_file_handles_makes_room_by_closing_who_says_nothing(keys: list[SecretKey]) -> None:
    command = [sys.executable, "-c", FEW_FILES]
    async with await anyio.open_process(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        text = (await process.stdout.receive()).decode().strip()
        address = parse_address(text)
        try:
            async with AsyncExitStack() as stack:
                for _ in range(150):
                    sock = stack.enter_context(socket.socket())
                    sock.connect((address.host, address.port))
                with anyio.fail_after(TIMEOUT):
                    async with TcpBackend(BackendContext(run_id="conformance", address=text, key=keys[0])) as backend:
                        await backend.join(b"here", timeout=TIMEOUT)
        finally:
            process.kill()


@asynccontextmanager
async def answering(handle: Callable[[SocketStream], Any]) -> AsyncIterator[str]:
    """The address of somebody on 127.0.0.1 who answers connections in some way."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)

    async def attend(stream: SocketStream) -> None:
        async with stream:
            with suppress(*LOST):
                await handle(stream)

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, attend)
        yield f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        tasks.cancel_scope.cancel()


async def knock(address: str, key: SecretKey) -> None:
    link = await dial(parse_address(address), service=COORDINATOR, key=key, run_id=None, timeout=TIMEOUT)
    await link.frames.aclose()


async def test_a_client_that_is_closed_before_its_login_comes_again(serving: Any, keys: list[SecretKey]) -> None:
    async with serving() as server:
        real, count = parse_address(server.address), itertools.count()

        async def once_closed(stream: SocketStream) -> None:
            if next(count) == 0:
                return

            async with await anyio.connect_tcp(real.host, real.port) as onward, anyio.create_task_group() as tasks:

                async def pump(source: SocketStream, sink: SocketStream) -> None:
                    with suppress(*LOST):
                        while True:
                            await sink.send(await source.receive())
                    tasks.cancel_scope.cancel()

                tasks.start_soon(pump, stream, onward)
                tasks.start_soon(pump, onward, stream)

        async with answering(once_closed) as address:
            await knock(address, keys[0])
        assert next(count) == 2


async def test_a_client_gives_up_when_its_work_wins_no_place(keys: list[SecretKey]) -> None:
    proofs: list[bytes] = []

    async def never_enough(stream: SocketStream) -> None:
        data = await stream.receive()
        proofs.append(data[:8])
        await stream.send(encode_challenge(Cookies().issue(1, 0.0)))
        await stream.send_eof()

    async with answering(never_enough) as address:
        with pytest.raises(CommandRefused, match="our proofs of work got no place") as refused:
            await knock(address, keys[0])
    assert refused.value.code == "Busy"
    assert [data == PROOF_MAGIC for data in proofs] == [False] + [True] * (MOST_TRIES - 1)


async def test_a_client_does_not_work_for_hours(keys: list[SecretKey]) -> None:
    async def too_hard(stream: SocketStream) -> None:
        await stream.receive()
        await stream.send(encode_challenge(bytes([60]) + bytes(32)))

    async with answering(too_hard) as address:
        with pytest.raises(BackendError, match="a puzzle of 60 bits, we solve at most 22"):
            await knock(address, keys[0])


async def test_the_data_server_keeps_places_for_members_too(serving: Any, client: Any, keys: list[SecretKey]) -> None:
    provider = DummyData(sequence_length=8)
    async with serving(limits=Limits(max_connections=1), data=provider) as server, client(server, keys[0]) as member:
        await member.join(b"here", timeout=TIMEOUT)
        address = parse_address(server.data_address)
        stranger = await dial(address, service=DATA, key=keys[1], run_id=None, timeout=TIMEOUT)
        with pytest.raises(CommandRefused, match="besides its members"):
            await dial(address, service=DATA, key=keys[2], run_id=None, timeout=TIMEOUT)
        link = await dial(address, service=DATA, key=keys[0], run_id=None, timeout=TIMEOUT)
        await link.frames.aclose()
        await stranger.frames.aclose()
