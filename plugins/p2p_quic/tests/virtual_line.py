"""A member that fetches results over a line of a given rate, in virtual time: no sockets, and no test waits.

The member is the real `Results`; its sessions and streams are simulated. Neighbours send at their own rates, and together no more
than the member's line carries, which they share equally.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import selectors
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, TypeVar

import anyio
import pytest

from psyche_core.p2p import blob_store
from psyche_core.p2p.blob_store import BlobStore
from psyche_core.p2p.patience import Patience
from psyche_p2p_quic.blobs.frames import BlobHead, BlobRequest
from psyche_p2p_quic.blobs.results import Results
from psyche_p2p_quic.endpoint.links import LinkLost
from psyche_p2p_quic.settings import QuicSettings

TICK = 0.02
ON_ITS_WAY = 512 * 1024
"""Bytes that a sender may have written and its receiver not read."""

T = TypeVar("T")
Serve = Callable[["VirtualStream", bytes], Awaitable[None]]


class _Selector(selectors.DefaultSelector):
    """Moves the clock instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is not None and timeout > 0:
            self.now += timeout
        return list(super().select(0))


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run(work: Coroutine[Any, Any, T], monkeypatch: pytest.MonkeyPatch) -> T:
    """Run until `work` is done, in virtual time."""
    monkeypatch.setattr(blob_store, "LARGE_BLOB_BYTES", 2**62)  # a thread would take real time
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)


class VirtualStream:
    """A request and its answer. The member calls the first part, a neighbour the second."""

    def __init__(self, world: World, serve: Serve) -> None:
        self._world = world
        self._serve = serve
        self._request = b""
        self._sent: deque[bytes] = deque()
        self._here = bytearray()
        self.waiting = 0
        self.ended = False
        self.broken = False
        self.changed = anyio.Event()
        self._task: asyncio.Task[None] | None = None

    async def write(self, data: bytes) -> None:
        self._request += data

    async def finish(self) -> None:
        self._task = asyncio.create_task(self._answer())

    async def read(self, most: int) -> bytes:
        while not self._here:
            if self.broken or (self.ended and not self.waiting):
                return b""

            await self._wait()
        return self._taken(most)

    async def read_exactly(self, count: int) -> bytes:
        while len(self._here) < count:
            if self.broken or (self.ended and not self.waiting):
                message = "the stream ended"
                raise LinkLost(message)

            await self._wait()
        return self._taken(count)

    async def abandon(self) -> None:
        self.broken = True
        self.notify()

    # ------------------------------------------------------------------------------------------------------- a neighbour

    async def send(self, data: bytes) -> None:
        """Send bytes; return when nearly all are on the line. Raises LinkLost if the member has withdrawn its request."""
        for at in range(0, len(data), ON_ITS_WAY):
            part = data[at : at + ON_ITS_WAY]
            self._sent.append(part)
            self.waiting += len(part)
            while self.waiting > ON_ITS_WAY and not self.broken:
                await self._wait()
            if self.broken:
                raise LinkLost

    def arrive(self, count: int) -> None:
        """Let the line bring so many bytes."""
        self._world.brought += count
        self.waiting -= count
        while count:
            part = self._sent.popleft()
            self._here += part[:count]
            if len(part) > count:
                self._sent.appendleft(part[count:])
            count -= min(count, len(part))
        self.notify()

    def notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def _answer(self) -> None:
        await anyio.sleep(0.05)
        with suppress(LinkLost):
            await self._serve(self, self._request)
        self.ended = True
        self.notify()

    async def _wait(self) -> None:
        await self.changed.wait()

    def _taken(self, count: int) -> bytes:
        taken = bytes(self._here[:count])
        del self._here[:count]
        return taken


class _Session:
    def __init__(self, peer: bytes, world: World, serve: Serve) -> None:
        self.peer = peer
        self.asking = anyio.Semaphore(16)
        self.streams: list[VirtualStream] = []
        self._world = world
        self._serve = serve

    async def open(self) -> VirtualStream:
        stream = VirtualStream(self._world, self._serve)
        self.streams.append(stream)
        self._world.streams.append(stream)
        return stream

    def note_received(self, received: int) -> None:
        self._world.received += received


class World:
    """A member, its line of so many bytes a second, and its neighbours. size: of a result, bytes."""

    def __init__(self, *, line: float, size: int, results: int, settings: QuicSettings, seed: int = 0) -> None:
        self.line = line
        self.size = size
        self.settings = settings
        self.received = 0
        self.brought = 0
        self.asked: dict[bytes, int] = {}
        self.streams: list[VirtualStream] = []
        draw = random.Random(seed)
        self.blobs = {hashlib.sha256(blob).digest(): blob for blob in (draw.randbytes(size) for _ in range(results))}
        self.names = tuple(blob_hash[:16] for blob_hash in self.blobs)
        self.got: dict[bytes, float] = {}
        self.failed: list[bytes] = []
        self.mesh = SimpleNamespace(
            sessions={},
            relayed=frozenset(),
            guests=SimpleNamespace(neighbours=()),
            reputation=SimpleNamespace(doubted=frozenset(), served_false=lambda *_args, **_kwargs: False),
        )
        self.results = Results(BlobStore(), self.mesh, settings=settings)  # type: ignore[arg-type]
        self.results._downloads._draw.seed(seed)
        self.results.begin_epoch(1)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def connect(self, peer: bytes, serve: Callable[[VirtualStream, bytes, bytes], Awaitable[None]]) -> None:
        """Add a neighbour. serve: gets the stream, the hash that was asked for, and the peer's key."""

        async def one(stream: VirtualStream, request: bytes) -> None:
            self.asked[peer] = self.asked.get(peer, 0) + 1
            await serve(stream, BlobRequest.decode(request).blob_hash, peer)

        self.mesh.sessions[peer] = _Session(peer, self, one)

    def disconnect(self, peer: bytes) -> None:
        """End a neighbour's connection."""
        session = self.mesh.sessions.pop(peer)
        for stream in session.streams:
            stream.broken = True
            stream.notify()
        self.results.gone(peer)

    def honest(self, peer: bytes, *, rate: float, places: int = 2) -> None:
        """Add a neighbour that sends so many bytes a second together, and so many results at once."""
        turns = anyio.Semaphore(places)
        sending: list[VirtualStream] = []

        async def serve(stream: VirtualStream, blob_hash: bytes, _peer: bytes) -> None:
            async with turns:
                if stream.broken:
                    return

                sending.append(stream)
                try:
                    blob = self.blobs[blob_hash]
                    await stream.send(BlobHead(True, len(blob)).encode())
                    at = 0
                    while at < len(blob):
                        part = max(1, int(rate * TICK / len(sending)))
                        await stream.send(blob[at : at + part])
                        at += part
                        await anyio.sleep(TICK)
                finally:
                    sending.remove(stream)

        self.connect(peer, serve)

    def announce(self, peers: Sequence[bytes]) -> None:
        """Let peers say that they have all results."""
        for peer in peers:
            self.results.heard(peer, self.names)

    async def fetch_all(self, *, limit: float, timeout: float = 30.0) -> None:
        """Fetch all results, or stop after `limit` seconds. Fills `got` and `failed`."""
        began = self.now()

        async def fetch(blob_hash: bytes) -> None:
            patience = Patience(timeout, now=self.now(), least=self.settings.hedge_bytes / self.settings.hedge_seconds)
            got = await self.results.fetch(blob_hash, sources=(), max_bytes=self.size, patience=patience)
            if got == self.blobs[blob_hash]:
                self.got[blob_hash] = self.now() - began
            else:
                self.failed.append(blob_hash)

        async with anyio.create_task_group() as line:
            line.start_soon(self.carry)
            with anyio.move_on_after(limit):
                async with anyio.create_task_group() as tasks:
                    for blob_hash in self.blobs:
                        tasks.start_soon(fetch, blob_hash)
            line.cancel_scope.cancel()
        await self.results.aclose()

    async def carry(self) -> None:
        """Share the line equally among what waits for it."""
        debt = 0.0
        while True:
            await anyio.sleep(TICK)
            self.streams = [stream for stream in self.streams if not stream.broken and not (stream.ended and not stream.waiting)]
            room = self.line * TICK + debt
            busy = [stream for stream in self.streams if stream.waiting]
            for left, stream in zip(range(len(busy), 0, -1), sorted(busy, key=lambda stream: stream.waiting), strict=True):
                count = min(stream.waiting, int(room / left))
                room -= count
                if count:
                    stream.arrive(count)
            debt = min(room, self.line * TICK) if busy else 0.0
