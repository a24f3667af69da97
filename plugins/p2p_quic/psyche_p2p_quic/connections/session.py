"""One connection with a member: tasks that carry frames and streams between the link and the control protocol.

Every error of the peer ends only this connection, with a code and a message. A read is never cancelled while the link is open;
closing the link ends it. Frames are read, and blob requests taken, no faster than the settings allow, so a flood waits in the
peer's own buffers. When the send queue is full, a peer that does not read is disconnected. `control_protocol` interprets frames.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from psyche_core.errors import TransportError, WireError
from psyche_core.rate_limit import TokenBucket
from psyche_core.wire.frames import FrameDecoder, frame
from psyche_p2p_quic.connections.control_frames import cost
from psyche_p2p_quic.connections.control_protocol import ControlProtocol, PeerSilent
from psyche_p2p_quic.endpoint.links import Link, LinkLost, Path, Stream
from psyche_p2p_quic.settings import QuicSettings

READ_BYTES = 64 * 1024
WRITE_BYTES = 256 * 1024
FRAMES_AT_ONCE = 16
"""Frames handled before other tasks run. Each may contain a message whose signature must be verified, 0.1 ms and more."""

LARGE_BYTES, LARGE_COUNTS = 64 * 1024, 0.1
"""A request answered with at least this many bytes counts as this fraction of a request, because receiving them costs the peer
more.
"""

CLOSED, NOT_A_MEMBER, BROKE_RULES, SUPERSEDED, SILENT, NOT_READING, NO_NEIGHBOUR = range(7)
"""Codes with which a connection is closed."""


class Owner(Protocol):
    """Reports of a session to its transport."""

    def count(self, *, sent: int = 0, received: int = 0) -> None:
        """Count payload bytes that were sent or received."""

    def messages_arrived(self) -> None:
        """Note that the message log may have unread messages."""

    def offended(self, session: Session, reason: str) -> None:
        """Note that the peer broke the rules; its connection is being closed."""

    async def serve(self, session: Session, stream: Stream) -> int:
        """Answer a stream that the peer opened; return the bytes sent. Raises WireError or LinkLost."""


class Session:
    """One connection with a member.

    link, stream: a connection and its control stream, both after the hello. decoder: has what was read after the hello. requests:
    how fast the peer's blob requests are taken; all its connections share it. dialled: whether we dialled. instance: the peer's.
    `ended` is set when the session is over. `peer_left` then says whether the peer closed it itself; if so, dialling it at once
    would be useless. sent, received: bytes of frames and blobs. transfers: blob requests so far, of both sides.
    """

    def __init__(
        self,
        link: Link,
        stream: Stream,
        decoder: FrameDecoder,
        *,
        conversation: ControlProtocol,
        owner: Owner,
        requests: TokenBucket,
        settings: QuicSettings,
        dialled: bool,
        instance: bytes,
    ) -> None:
        self.peer: bytes = link.peer
        self.dialled = dialled
        self.instance = instance
        self.ended: anyio.Event = anyio.Event()
        self.sent: int = 0
        self.received: int = 0
        self.transfers: int = 0
        self.peer_left: bool = False
        self.conversation = conversation
        self.asking: anyio.Semaphore = anyio.Semaphore(settings.streams_asked)
        self.being_read_to: anyio.Semaphore = anyio.Semaphore(settings.offers_read_per_peer)
        self._link = link
        self._stream = stream
        self._decoder = decoder
        self._owner = owner
        self._requests = requests
        self._settings = settings
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._queue_filled = anyio.Event()
        self._served = 0
        self._closing = anyio.Event()

    def send(self, frames: Iterable[bytes]) -> None:
        """Queue frames; a peer for which too much is queued is disconnected."""
        if self._closing.is_set():
            return

        for data in frames:
            framed = frame(data, limit=self._settings.frame_bytes)
            self._queue.append(framed)
            self._queued_bytes += len(framed)
            if self._queued_bytes > self._settings.send_queue_bytes:
                self.close(NOT_READING, "you do not read: too much data is waiting for you")
                return

        if self._queue:
            self._queue_filled.set()

    def close(self, code: int, reason: str) -> None:
        """End the session now; the peer sees the code and the reason. Idempotent."""
        if not self._closing.is_set():
            self._closing.set()
            self._queue.clear()  # at once, not only when the last task has ended
            self.peer_left = self._link.peer_code in (CLOSED, NO_NEIGHBOUR)
            self._link.close(code, reason)

    @property
    def closing(self) -> bool:
        """Whether the session is being ended."""
        return self._closing.is_set()

    @property
    def path(self) -> Path | None:
        """The present path of the connection's packets."""
        return self._link.path

    @property
    def busy(self) -> bool:
        """Whether a blob is being sent, received or waited for."""
        return self._served > 0 or self.asking.value < self._settings.streams_asked

    async def open(self) -> Stream:
        """Open a stream for a blob request."""
        self.transfers += 1
        return await self._link.open()

    async def run(self) -> None:
        """Run until either side ends it. Raises nothing but cancellation."""
        self.send(self.conversation.greeting())
        try:
            async with anyio.create_task_group() as tasks:
                for part in (self._read, self._write, self._beat, self._refuse_one_way):
                    tasks.start_soon(self._part, part, tasks)
                tasks.start_soon(self._part, lambda: self._accept(tasks), tasks)
                try:
                    await self._closing.wait()
                finally:  # before the parts are cancelled: an interrupted write would look like a finished stream to the peer
                    self.close(CLOSED, "closed")
                    tasks.cancel_scope.cancel()
        finally:
            self.ended.set()

    async def _part(self, work: Callable[[], Awaitable[None]], tasks: TaskGroup) -> None:
        try:
            await work()
        except WireError as error:
            self.close(BROKE_RULES, str(error))
            self._owner.offended(self, str(error))
        except PeerSilent as error:
            self.close(SILENT, str(error))
        except TransportError:
            self.close(CLOSED, "lost")
        tasks.cancel_scope.cancel()

    async def _read(self) -> None:
        clock = asyncio.get_running_loop().time
        rate, burst = self._settings.frames_per_second, float(self._settings.frame_burst)
        credit, last, handled = burst, clock(), 0
        while True:
            while (data := self._decoder.next()) is not None:
                handled += 1
                if handled % FRAMES_AT_ONCE == 0:
                    await asyncio.sleep(0)
                now = clock()
                credit, last = min(burst, credit + (now - last) * rate), now
                price = cost(data)
                if credit < price:
                    await anyio.sleep((price - credit) / rate)
                credit -= price
                self.send(self.conversation.receive(data))

            self._owner.messages_arrived()
            received = await self._stream.read(READ_BYTES)
            if not received:
                return

            self.note_received(len(received))
            self._decoder.feed(received)

    def note_received(self, received: int) -> None:
        """Note bytes received from the peer, on any stream."""
        self.conversation.note_received()
        self.received += received
        self._owner.count(received=received)

    async def _write(self) -> None:
        while True:
            if not self._queue:
                self._queue_filled = anyio.Event()
                await self._queue_filled.wait()

            batch, size = [], 0
            while self._queue and size < WRITE_BYTES:
                batch.append(self._queue.popleft())
                size += len(batch[-1])

            await self._stream.write(b"".join(batch))
            self._queued_bytes -= size
            self.sent += size
            self._owner.count(sent=size)

    async def _beat(self) -> None:
        while True:
            await anyio.sleep(self._settings.heartbeat_seconds)
            self.send(self.conversation.beat())

    async def _refuse_one_way(self) -> None:
        await self._link.accept_one_way()
        message = "you opened a one-way stream; this protocol has none"
        raise WireError(message)

    async def _accept(self, tasks: TaskGroup) -> None:
        while True:
            stream = await self._link.accept()
            if self._served >= self._settings.streams_served:
                message = f"you opened more than {self._settings.streams_served} streams at once"
                raise WireError(message)

            self._served += 1
            self.transfers += 1
            tasks.start_soon(self._serve, stream, tasks)
            wait = self._requests.take(asyncio.get_running_loop().time())
            if wait > 0:
                await anyio.sleep(wait)

    async def _serve(self, stream: Stream, tasks: TaskGroup) -> None:
        try:
            sent = await self._owner.serve(self, stream)
            self._requests.give_back(min(sent / LARGE_BYTES, 1 - LARGE_COUNTS))
        except WireError as error:
            self.close(BROKE_RULES, str(error))
            self._owner.offended(self, str(error))
            tasks.cancel_scope.cancel()
        except LinkLost:
            return  # the stream ended, or the link did, which the reading task notices
        finally:
            self._served -= 1
