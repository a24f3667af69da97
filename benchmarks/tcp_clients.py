"""The clients of `benchmarks.tcp_server`: real TLS, real logins, real joins, and the statements of a script.

All live in one process. What they compute from equal bytes (the decoded state) is computed once and shared.
"""

from __future__ import annotations

import functools
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import ByteStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream

from psyche_backend_tcp.connections.addresses import ServerAddress
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
from psyche_core.coordinator.commands import WarmupWitness, Witness
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.interfaces.backend import ClientCommand
from psyche_core.interfaces.command_codec import encode_command
from psyche_core.testing.backend import small_state
from psyche_core.types import NodeIdentity, RunState, WitnessStatement, bitmap
from psyche_core.wire.diff import patched
from psyche_core.wire.messages import sign_join
from psyche_core.wire.signing import SecretKey

ROUND_SECONDS = 30
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
    cpu_seconds: float = 0.0
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
                self.rss_mb, self.cpu_seconds = told["rss_mb"], told["cpu_seconds"]
                self.answered.set()

    async def order(self, **order: Any) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send(json.dumps(order).encode() + b"\n")

    async def weigh(self) -> tuple[float, float]:
        """Its resident memory in MB, and the CPU seconds that it has used."""
        self.answered = anyio.Event()
        await self.order(rss=True)
        with anyio.fail_after(STEP_SECONDS):
            await self.answered.wait()
        return self.rss_mb, self.cpu_seconds


class Fleet:
    """All clients and the script they play."""

    def __init__(self, clients: int, server: Server) -> None:
        self.server = server
        self.decoder = Decoder()
        self.clients = [Client(number, self.decoder, self.stir) for number in range(1, clients + 1)]
        self._by_signer = {client.identity.signer: client for client in self.clients}
        self._stirred = anyio.Event()

    def stir(self) -> None:
        """Look again at what all see."""
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
