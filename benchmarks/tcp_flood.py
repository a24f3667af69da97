"""Whether newcomers get in, and members are left in peace, while others flood a coordinator server. All over loopback.

    python -m benchmarks.tcp_server --flood [--rate 550] [--newcomers 20] [--json]

A process of its own opens connections at a steady rate and holds each until the server closes it. It says nothing, or sends a TLS
client hello and then nothing, which costs it as little and the server a handshake. It comes from 127.0.0.1 like the newcomers
(somebody behind the same router), from one other address, or from a thousand others. Newcomers are whole clients with new keys,
through a relay that adds a round-trip time; who is turned away tries again after 0.2 s and gives up after 10 s. Meanwhile members
that joined before ask the server something ten times a second each.

What is measured, for each kind of flood:
    newcomer_median_s, newcomer_worst_s   from the first try to a join that was answered; null for who gave up
    newcomers_in                          share that got in
    calm_p50_ms, calm_p99_ms              from a member's request to its answer, before the flood
    member_p50_ms, member_p99_ms          the same during the flood, before the newcomers, who solve puzzles in the same process
    members_lost                          connections of members that broke
    server_grew_mb                        resident memory of the server, afterwards less before
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import selectors
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
from anyio.abc import SocketAttribute, SocketStream, TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from psyche_backend_tcp.client.connection import TcpBackend
from psyche_backend_tcp.connections.addresses import ServerAddress, format_address
from psyche_core.coordinator.commands import WarmupWitness
from psyche_core.errors import BackendError, CommandRefused
from psyche_core.hookspecs import BackendContext
from psyche_core.wire.signing import SecretKey

Travelling = tuple[float, bytes]
"""When it arrives, and what."""

MEMBERS = 8
MEMBER_PAUSE = 0.1
GIVE_UP_SECONDS = 10.0
AT_ONCE = 5
MOST_SOCKETS = 8000
MOST_SECONDS = 120.0
SETTLING_SECONDS = 2.0
LISTENING_SECONDS = 3.0
TICK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Flood:
    """source: same, other, many. says: nothing, hello. round_trip: seconds a newcomer is away."""

    source: str
    says: str
    round_trip: float

    @property
    def name(self) -> str:
        return f"{self.says} from {self.source}, {1000 * self.round_trip:.0f} ms"


FLOODS = tuple(
    Flood(source, says, round_trip)
    for round_trip in (0.0, 0.25)
    for says in ("nothing", "hello")
    for source in ("same", "other", "many")
)


# ---------------------------------------------------------------- the flooding process


def client_hello() -> bytes:
    """What a TLS client says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


def sources(kind: str) -> list[str]:
    if kind == "many":
        return [f"127.1.{number // 250}.{1 + number % 250}" for number in range(1000)]
    return ["127.0.0.1" if kind == "same" else "127.2.0.1"]


def flood(port: int, rate: float, source: str, says: str) -> None:
    """Open `rate` connections a second until ended, at most two minutes."""
    hello = client_hello() if says == "hello" else b""
    places = itertools.cycle(sources(source))
    poll = selectors.DefaultSelector()
    began, opened = time.monotonic(), 0
    while (passed := time.monotonic() - began) < MOST_SECONDS:
        while opened < rate * passed and len(poll.get_map()) < MOST_SOCKETS:
            opened += 1
            sock = socket.socket()
            sock.setblocking(False)
            try:
                sock.bind((next(places), 0))
                sock.connect_ex(("127.0.0.1", port))
            except OSError:  # out of ports or sockets for a moment
                sock.close()
                continue
            poll.register(sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if hello else 0))

        for key, events in poll.select(TICK_SECONDS):
            assert isinstance(key.fileobj, socket.socket)
            sock = key.fileobj
            try:
                if events & selectors.EVENT_WRITE:
                    sock.send(hello)
                    poll.modify(sock, selectors.EVENT_READ)
                if events & selectors.EVENT_READ and not sock.recv(65536):
                    raise ConnectionError
            except OSError:
                poll.unregister(sock)
                sock.close()


@contextlib.asynccontextmanager
async def flooding(port: int, rate: float, kind: Flood) -> AsyncIterator[None]:
    command = [sys.executable, "-m", "benchmarks.tcp_flood", str(port), str(rate), kind.source, kind.says]
    async with await anyio.open_process(command, stdout=None, stderr=None) as process:
        try:
            yield
        finally:
            process.kill()


# ---------------------------------------------------------------- a line with a round-trip time


async def relay(tasks: TaskGroup, server: ServerAddress, round_trip: float) -> int:
    """Listen on a free port of 127.0.0.1 and pass on what comes, half a round trip later in each direction; the port."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)

    async def carry(origin: SocketStream, wire: MemoryObjectSendStream[Travelling]) -> None:
        with wire:
            async for data in origin:
                await wire.send((anyio.current_time() + round_trip / 2, data))

    async def deliver(wire: MemoryObjectReceiveStream[Travelling], target: SocketStream) -> None:
        async for due, data in wire:
            await anyio.sleep_until(due)
            await target.send(data)

    async def pass_on(near: SocketStream) -> None:
        lost = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
        with contextlib.suppress(*lost, BaseExceptionGroup):
            async with near, anyio.create_task_group() as group:
                await anyio.sleep(round_trip)  # the server's answer to the first packet; what follows arrives with ours to that
                out, out_end = anyio.create_memory_object_stream[Travelling](1000)
                back, back_end = anyio.create_memory_object_stream[Travelling](1000)
                group.start_soon(carry, near, out)
                await anyio.sleep(round_trip / 2)
                async with await anyio.connect_tcp(server.host, server.port) as far:
                    group.start_soon(deliver, out_end, far)
                    group.start_soon(carry, far, back)
                    await deliver(back_end, near)
                    group.cancel_scope.cancel()

    tasks.start_soon(listener.serve, pass_on)
    port = listener.extra(SocketAttribute.local_port)
    assert isinstance(port, int)
    return port


# ---------------------------------------------------------------- those who are measured


class Server(Protocol):
    """The server's process, as `benchmarks.tcp_server` has it."""

    rss_mb: float
    answered: anyio.Event

    async def follow(self, moved: Callable[[], None]) -> None: ...
    async def order(self, **order: Any) -> None: ...


Hosted = Callable[[int], AbstractAsyncContextManager[tuple[Any, ServerAddress]]]


def backend(address: str) -> TcpBackend:
    return TcpBackend(BackendContext(run_id="benchmark", address=address, key=SecretKey.generate()))


async def come(address: str) -> float | None:
    """Join as somebody new; the seconds it took."""
    began = time.monotonic()
    with anyio.move_on_after(GIVE_UP_SECONDS):
        while True:
            with contextlib.suppress(BackendError, TimeoutError):
                async with backend(address) as newcomer:
                    await newcomer.join(b"here", timeout=GIVE_UP_SECONDS)
                    return time.monotonic() - began
            await anyio.sleep(0.2)
    return None


async def ask(member: TcpBackend, times: list[float]) -> None:
    """Ask for something that is refused, again and again."""
    while True:
        began = time.monotonic()
        with contextlib.suppress(CommandRefused):
            await member.send(WarmupWitness(member.identity, 0, 0, bytes(32)), timeout=60.0)
        times.append(time.monotonic() - began)
        await anyio.sleep(MEMBER_PAUSE)


async def listen_to(members: list[TcpBackend], times: list[float]) -> None:
    """How long each member waits for its answers, for a while."""
    with anyio.move_on_after(LISTENING_SECONDS):
        async with anyio.create_task_group() as tasks:
            for member in members:
                tasks.start_soon(ask, member, times)


def milliseconds(times: list[float], share: float) -> float:
    return round(1000 * sorted(times)[int(share * len(times))], 2)


async def memory(server: Server) -> float:
    server.answered = anyio.Event()
    await server.order(rss=True)
    await server.answered.wait()
    return server.rss_mb


async def one(server: Server, address: ServerAddress, kind: Flood, *, rate: float, newcomers: int) -> dict[str, Any]:
    assert address.key is not None
    direct = format_address(address.host, address.port, address.key)
    took: list[float | None] = []
    calm: list[float] = []
    flooded: list[float] = []
    async with contextlib.AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        members = [await stack.enter_async_context(backend(direct)) for _ in range(MEMBERS)]
        for member in members:
            await member.join(b"here", timeout=GIVE_UP_SECONDS)
        before = await memory(server)
        through = direct
        if kind.round_trip:
            port = await relay(tasks, address, kind.round_trip)
            through = format_address("127.0.0.1", port, address.key)
        await listen_to(members, calm)
        async with flooding(address.port, rate, kind):
            await anyio.sleep(SETTLING_SECONDS)
            await listen_to(members, flooded)
            limiter = anyio.CapacityLimiter(AT_ONCE)

            async def newcomer() -> None:
                async with limiter:
                    took.append(await come(through))

            async with anyio.create_task_group() as group:
                for _ in range(newcomers):
                    group.start_soon(newcomer)
            await anyio.sleep(1.0)
            grew = await memory(server) - before
        tasks.cancel_scope.cancel()
        lost = sum(member.reconnects for member in members)

    ordered = sorted(took, key=lambda seconds: seconds if seconds is not None else GIVE_UP_SECONDS)
    median, worst = ordered[len(ordered) // 2], ordered[-1]
    return {
        "newcomer_median_s": None if median is None else round(median, 3),
        "newcomer_worst_s": None if worst is None else round(worst, 3),
        "newcomers_in": round(sum(seconds is not None for seconds in took) / len(took), 2),
        "calm_p50_ms": milliseconds(calm, 0.5),
        "calm_p99_ms": milliseconds(calm, 0.99),
        "member_p50_ms": milliseconds(flooded, 0.5),
        "member_p99_ms": milliseconds(flooded, 0.99),
        "members_lost": lost,
        "server_grew_mb": round(grew, 1),
    }


async def measure(hosted: Hosted, *, rate: float, newcomers: int) -> dict[str, dict[str, Any]]:
    """The figures of every kind of flood, each against a server of its own."""
    figures = {}
    for kind in FLOODS:
        async with hosted(64) as (server, address), anyio.create_task_group() as tasks:
            tasks.start_soon(server.follow, lambda: None)
            figures[kind.name] = await one(server, address, kind, rate=rate, newcomers=newcomers)
            tasks.cancel_scope.cancel()
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tcp_flood", description="the flooding process")
    parser.add_argument("port", type=int)
    parser.add_argument("rate", type=float)
    parser.add_argument("source", choices=("same", "other", "many"))
    parser.add_argument("says", choices=("nothing", "hello"))
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        flood(options.port, options.rate, options.source, options.says)
