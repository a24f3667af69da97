"""One real coordinator server against many clients over loopback: how fast a change reaches everybody, in how many bytes.

    python -m benchmarks.tcp_server --clients 256 [--rounds 5] [--json]
    python -m benchmarks.tcp_server --flood [--rate 550] [--newcomers 20] [--json]      see `benchmarks.tcp_flood`

The server is a process of its own: TLS, login, limits and saving to disk as in a real run; only its clock is moved by hand, so
that a round of 30 s takes less. The clients are fake in what they train, not in what they say: real TLS, real logins, real joins,
and per round the statements of 32 elected witnesses, one after the other so that no two merge into one message (the most bytes
and the most changes a round can cause). All clients take in every frame, apply the patch and check the hash.

What is measured:
    fanout_p99_ms               from the server's state change (before it is saved) until a client has decoded it, 99th percentile
                                over all changes and clients
    bytes_per_client_per_round  received on the wire, TLS included, plus the three pings of 30 s
    reference_…                 computed: the reference sends its 94,048-byte state twice a second to everybody
    server_rss_mb               resident memory of the server process at the end

All clients live in one process here, on machines of their own there: what they compute from equal bytes (the decoded state) is
computed once and shared, so that the figure is not 256 clients' work on our cores. TLS and bookkeeping of each is still in it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import ByteStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks import tcp_flood
from psyche_backend_tcp.connections.addresses import ServerAddress, parse_address
from psyche_backend_tcp.connections.dialer import DialedConnection, shake_hands
from psyche_backend_tcp.connections.login import COORDINATOR
from psyche_backend_tcp.protocol import (
    Answer,
    Bye,
    CommandRequest,
    Heartbeat,
    JoinRequest,
    Patch,
    Whole,
    decode_server,
    document_digest,
    encode_client,
    read_document,
)
from psyche_backend_tcp.server import hub
from psyche_backend_tcp.server.tcp_server import TcpServer
from psyche_core.coordinator import apply, new_state
from psyche_core.coordinator.commands import WarmupWitness, Witness
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.hookspecs import ServerContext
from psyche_core.interfaces.backend import ClientCommand
from psyche_core.interfaces.command_codec import encode_command
from psyche_core.testing.backend import small_state
from psyche_core.types import NodeIdentity, RunState, WitnessStatement, bitmap
from psyche_core.wire.diff import patched
from psyche_core.wire.messages import sign_join
from psyche_core.wire.signing import SecretKey

REFERENCE_STATE_BYTES = 94_048
REFERENCE_SENDS_PER_ROUND = 60
ROUND_SECONDS = 30
WITNESSES = 32
PINGS_PER_ROUND = 3
PING_BYTES = 2 + 4 + 22
"""A ping's CBOR, its length, and what TLS 1.3 adds to a record."""

ADDRESS_BYTES = 120
CONNECTING = 32
STEP_SECONDS = 60.0
"""Longest wait for one change to reach everybody before the benchmark gives up."""

Mark = tuple[int, ...]
"""What tells two states of this script apart: epoch, phase, height, statements, ready, waiting."""


def mark(state: CoordinatorState) -> Mark:
    current = state.current_round
    height, statements = (current.height, len(current.statements)) if current is not None else (-1, 0)
    return (state.progress.epoch, int(state.run_state), height, statements, len(state.epoch.ready), len(state.pending))


# ---------------------------------------------------------------- the server process


def first_state(clients: int) -> CoordinatorState:
    small = small_state(clients=clients, run_id="benchmark")
    changes = {
        "min_clients": clients,
        "witness_nodes": min(WITNESSES, clients),
        "total_steps": 1_000_000,
        "warmup_time": 10_000,
        "max_round_train_time": 10_000,
        "round_witness_time": 10_000,
        "epoch_time": 1_000_000,
        "global_batch_size_start": 4 * clients,
        "global_batch_size_end": 4 * clients,
    }
    return new_state("benchmark", small.config.model_copy(update=changes), small.model, now=small.since, instance=small.instance)


async def serve(clients: int, folder: Path) -> None:
    """Host the run; stdin moves the clock, stdout tells each change and when it was made."""
    state = first_state(clients)
    now = state.since

    def tell(**facts: Any) -> None:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()

    def timed_apply(before: CoordinatorState, *rest: Any) -> Any:
        after, events = apply(before, *rest)
        if after is not before and mark(after) != mark(before):
            tell(change=mark(after), at=time.monotonic())
        return after, events

    setattr(hub, "apply", timed_apply)  # noqa: B010  # the moment of a change is nobody's business but this benchmark's
    server = TcpServer(ServerContext(state=state, state_dir=folder), clock=lambda: now)
    async with server, anyio.create_task_group() as group:
        group.start_soon(server.serve)
        tell(address=server.address)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            order = json.loads(line)
            if "seconds" in order:
                now += order["seconds"]
                server.tick()
            else:
                tell(rss_mb=resident_mb())
        group.cancel_scope.cancel()


def resident_mb() -> float:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


# ---------------------------------------------------------------- the clients


class CountingStream(ByteStream):
    """Counts what arrives on the wire."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.received = 0

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return self._stream.extra_attributes

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._stream.receive(max_bytes)
        self.received += len(data)
        return data

    async def send(self, item: bytes) -> None:
        await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


@dataclass(frozen=True, slots=True)
class Version:
    digest: bytes
    tree: Any
    state: CoordinatorState


class Decoder:
    """What a client makes of a frame, worked out once for all that hold the same document and get the same bytes."""

    def __init__(self) -> None:
        self._versions: dict[tuple[bytes, bytes], Version] = {}
        self.seconds: list[float] = []

    def decode(self, known: Version | None, payload: bytes) -> Version:
        key = known.digest if known is not None else b"", payload
        version = self._versions.get(key)
        if version is None:
            began = time.monotonic()
            version = self._versions[key] = self._decode(known, payload)
            self.seconds.append(time.monotonic() - began)
            if len(self._versions) > 64:
                del self._versions[next(iter(self._versions))]
        return version

    def _decode(self, known: Version | None, payload: bytes) -> Version:
        match decode_server(payload):
            case Whole(digest, tree):
                pass
            case Patch(base, digest, patch):
                assert known is not None
                assert base == known.digest, "a patch for another document"
                tree = patched(known.tree, patch)
            case other:
                message = f"expected a document, got {other}"
                raise RuntimeError(message)
        assert document_digest(tree) == digest, "the server's hash is wrong"
        return Version(digest, tree, read_document(tree).state)


class Client:
    """One member. seen: when each mark was decoded."""

    def __init__(self, number: int, decoder: Decoder, moved: Callable[[], None]) -> None:
        self.key = SecretKey(number.to_bytes(2, "big") * 16)
        self.identity = NodeIdentity(self.key.public, self.key.public)
        self.version: Version | None = None
        self.seen: list[tuple[Mark, float]] = []
        self.wire: CountingStream | None = None
        self._link: DialedConnection | None = None
        self._decoder = decoder
        self._moved = moved
        self._number = 0

    async def connect(self, address: ServerAddress) -> None:
        self.wire = CountingStream(await anyio.connect_tcp(address.host, address.port))
        self._link = await shake_hands(self.wire, expected=address.key, service=COORDINATOR, key=self.key, run_id="benchmark")

    async def follow(self) -> None:
        assert self._link is not None
        while True:
            payload = await self._link.frames.receive()
            if payload[1] in (2, 3):  # a document or a patch: the second byte is the message's kind
                self.version = self._decoder.decode(self.version, payload)
                self.seen.append((mark(self.version.state), time.monotonic()))
                self._moved()
                continue

            match decode_server(payload):
                case Heartbeat():
                    await self._link.frames.send(encode_client(Heartbeat()))
                case Answer(_, "", _):
                    continue
                case Answer(_, code, sentence) | Bye(code, sentence):
                    message = f"the server refused something: {code}: {sentence}"
                    raise RuntimeError(message)

    async def join(self) -> None:
        proof = sign_join(self.key, small_state(run_id="benchmark").instance, self.identity.signer)
        await self._send(JoinRequest(self._next(), secrets.token_bytes(ADDRESS_BYTES), proof))

    async def say(self, command: ClientCommand) -> None:
        await self._send(CommandRequest(self._next(), encode_command(command)))

    async def aclose(self) -> None:
        if self.wire is not None:
            await self.wire.aclose()

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _send(self, message: JoinRequest | CommandRequest) -> None:
        assert self._link is not None
        await self._link.frames.send(encode_client(message))


@dataclass(slots=True)
class Server:
    """The other process."""

    process: Process
    lines: BufferedByteReceiveStream
    changes: list[tuple[Mark, float]] = field(default_factory=list)
    rss_mb: float = 0.0
    answered: anyio.Event = field(default_factory=anyio.Event)

    async def follow(self, moved: Callable[[], None]) -> None:
        while True:
            try:
                told = json.loads(await self.lines.receive_until(b"\n", 1 << 16))
            except (anyio.EndOfStream, anyio.IncompleteRead):
                return
            if "change" in told:
                self.changes.append((tuple(told["change"]), told["at"]))
                moved()
            else:
                self.rss_mb = told["rss_mb"]
                self.answered.set()

    async def order(self, **order: Any) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send(json.dumps(order).encode() + b"\n")


class Fleet:
    """All clients and the script they play."""

    def __init__(self, clients: int, server: Server) -> None:
        self.server = server
        self.decoder = Decoder()
        self.clients = [Client(number, self.decoder, self._stir) for number in range(1, clients + 1)]
        self._by_signer = {client.identity.signer: client for client in self.clients}
        self._stirred = anyio.Event()

    def _stir(self) -> None:
        self._stirred.set()

    async def all_see(self, wanted: Callable[[CoordinatorState], bool], what: str) -> CoordinatorState:
        """Wait until every client has a state that is wanted."""
        with anyio.move_on_after(STEP_SECONDS):
            while True:
                self._stirred = anyio.Event()
                versions = {
                    client.version.digest if client.version is not None else b"": client.version for client in self.clients
                }
                newest = self.clients[0].version
                if newest is not None and all(version is not None and wanted(version.state) for version in versions.values()):
                    return newest.state

                await self._stirred.wait()

        message = f"not everybody saw {what} within {STEP_SECONDS:g} s"
        raise RuntimeError(message)

    async def gather(self, address: ServerAddress, tasks: anyio.abc.TaskGroup) -> None:
        """Connect everybody and let them join."""
        limiter = anyio.CapacityLimiter(CONNECTING)

        async def connect(client: Client) -> None:
            async with limiter:
                await client.connect(address)
            tasks.start_soon(client.follow)

        async with anyio.create_task_group() as group:
            for client in self.clients:
                group.start_soon(connect, client)
        for client in self.clients:
            await client.join()
        await self.all_see(lambda state: len(state.pending) == len(self.clients), "all members waiting")
        await self.server.order(seconds=10)
        state = await self.all_see(lambda state: state.run_state is RunState.Warmup, "the warmup")
        for slot, member in enumerate(state.epoch.clients):
            await self._of(member.id).say(WarmupWitness(member.id, state.progress.epoch, slot, b"\1" * 32))
        await self.all_see(lambda state: state.run_state.active, "the first round")

    async def play_round(self) -> None:
        """One round as its 32 witnesses make it, their statements one after the other."""
        version = self.clients[0].version
        assert version is not None
        state = version.state
        current = state.current_round
        assert current is not None
        await self.server.order(seconds=ROUND_SECONDS)
        participants = bitmap(list(current.slots)) if current.height else bitmap([])
        root, digest = secrets.token_bytes(32), secrets.token_bytes(32)
        slots = sorted(witness_slots(state, current))
        for count, slot in enumerate(slots, start=1):
            member = state.epoch.clients[slot].id
            bloom = secrets.token_bytes(320) if current.height else bytes(320)
            statement = WitnessStatement(state.progress.epoch, current.height, slot, participants, bloom, root, digest)
            await self._of(member).say(Witness(member, statement))
            reached = functools.partial(_reached, height=current.height, count=count)
            await self.all_see(reached, f"statement {count} of round {current.height}")
        await self.all_see(functools.partial(_reached, height=current.height + 1, count=0), f"round {current.height + 1}")

    def _of(self, identity: NodeIdentity) -> Client:
        return self._by_signer[identity.signer]


def _reached(state: CoordinatorState, *, height: int, count: int) -> bool:
    current = state.current_round
    return current is not None and (current.height > height or (current.height == height and len(current.statements) >= count))


# ---------------------------------------------------------------- measuring


def latencies(changes: list[tuple[Mark, float]], clients: list[Client]) -> list[float]:
    """Milliseconds from each change to each client that has it, or something newer. changes: in order, marks distinct."""
    places = {mark: place for place, (mark, _) in enumerate(changes)}
    found = []
    for client in clients:
        done = 0
        for mark, at in client.seen:
            place = places.get(mark, -1)
            found += [1000 * (at - changes[number][1]) for number in range(done, place + 1)]
            done = max(done, place + 1)
    return found


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextlib.asynccontextmanager
async def hosted(clients: int) -> AsyncIterator[tuple[Server, ServerAddress]]:
    with tempfile.TemporaryDirectory(prefix="psyche-benchmark-") as folder:
        command = [sys.executable, "-m", "benchmarks.tcp_server", "--serve", folder, "--clients", str(clients)]
        async with await anyio.open_process(command, stderr=None) as process:
            assert process.stdout is not None
            lines = BufferedByteReceiveStream(process.stdout)
            try:
                with anyio.fail_after(STEP_SECONDS):
                    address = json.loads(await lines.receive_until(b"\n", 1 << 16))["address"]
                yield Server(process, lines), parse_address(address)
            finally:
                process.terminate()


async def measure(clients: int, rounds: int) -> dict[str, Any]:
    """All figures, those of `--json` and what the table shows besides."""
    async with hosted(clients) as (server, address), anyio.create_task_group() as tasks:
        fleet = Fleet(clients, server)
        tasks.start_soon(server.follow, fleet._stir)
        began = time.monotonic()
        await fleet.gather(address, tasks)
        gathered = time.monotonic() - began
        await fleet.play_round()  # the first round of an epoch has nothing to attest
        await fleet.play_round()

        gc.collect()
        gc.freeze()
        first = len(server.changes)
        fleet.decoder.seconds.clear()
        for client in fleet.clients:
            client.seen.clear()
        received = [client.wire.received if client.wire is not None else 0 for client in fleet.clients]
        began = time.monotonic()
        for _ in range(rounds):
            await fleet.play_round()
        played = time.monotonic() - began
        total = sum(client.wire.received for client in fleet.clients if client.wire is not None) - sum(received)
        await server.order(rss=True)
        with anyio.fail_after(STEP_SECONDS):
            await server.answered.wait()
        times = latencies(server.changes[first:], fleet.clients)
        bytes_received = total / clients / rounds + PINGS_PER_ROUND * PING_BYTES
        reference = REFERENCE_STATE_BYTES * REFERENCE_SENDS_PER_ROUND
        figures = {
            "fanout_p99_ms": round(percentile(times, 0.99), 2),
            "bytes_per_client_per_round": round(bytes_received),
            "reference_bytes_per_client_per_round": reference,
            "server_rss_mb": round(server.rss_mb, 1),
            "fanout_p50_ms": round(percentile(times, 0.5), 2),
            "fanout_max_ms": round(max(times), 2),
            "share_of_reference_percent": round(100 * bytes_received / reference, 3),
            "changes_per_round": round((len(server.changes) - first) / rounds, 1),
            "decode_ms": round(1000 * percentile(fleet.decoder.seconds, 0.5), 2),
            "gather_seconds": round(gathered, 1),
            "real_seconds_per_round": round(played / rounds, 2),
        }
        tasks.cancel_scope.cancel()
    for client in fleet.clients:
        await client.aclose()
    return figures


JSON_FIGURES = ("fanout_p99_ms", "bytes_per_client_per_round", "reference_bytes_per_client_per_round", "server_rss_mb")
MOST_RATE = 5000


def show_floods(options: argparse.Namespace) -> int:
    figures = anyio.run(functools.partial(tcp_flood.measure, hosted, rate=options.rate, newcomers=options.newcomers))
    if options.json:
        print(json.dumps(figures))
        return 0

    print(f"{options.rate:g} connections a second, {options.newcomers} newcomers, {os.cpu_count()} cores")
    for name, values in figures.items():
        print(f"  {name:26}" + "".join(f"  {figure} {value}" for figure, value in values.items()))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tcp_server", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--clients", type=int, default=256, help="fake clients, 1 to 256 (256)")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (5)")
    parser.add_argument("--flood", action="store_true", help="instead: newcomers and members while the server is flooded")
    parser.add_argument("--rate", type=float, default=550.0, help="of a flood: connections a second (550)")
    parser.add_argument("--newcomers", type=int, default=20, help="of a flood: those who try to get in (20)")
    parser.add_argument("--json", action="store_true", help="one line of JSON with the figures")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not 1 <= options.clients <= 256 or options.rounds < 1:
        parser.error("expected 1 to 256 clients and at least one round")
    if not 0 < options.rate <= MOST_RATE or options.newcomers < 1:
        parser.error(f"expected up to {MOST_RATE} connections a second and at least one newcomer")

    if options.serve is not None:
        with contextlib.suppress(KeyboardInterrupt):
            anyio.run(serve, options.clients, options.serve)
        return 0

    if options.flood:
        return show_floods(options)

    figures = anyio.run(measure, options.clients, options.rounds)
    if options.json:
        print(json.dumps({name: figures[name] for name in JSON_FIGURES}))
    else:
        print(f"{options.clients} clients, {options.rounds} rounds of {WITNESSES} statements, {os.cpu_count()} cores")
        for name, value in figures.items():
            print(f"  {name:38} {value:>14,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
