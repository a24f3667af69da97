"""A link with a member: two lists in Redis, one for each direction, whose frames are signed.

    [0]                          I am here
    [1, tag, relayed, message]   a message
    [2, request, hash, limit]    I want this blob, if it has at most so many bytes
    [3, request, size]           it is in Redis now
    [4, request, code]           I have not got it (0), or it is too large (1)
    [5]                          I end this link

A link is proven once the first frame of the peer has come. Nothing but "I am here" is said before.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from itertools import count
from typing import Protocol

import anyio
from anyio.abc import TaskGroup
from redis.asyncio import Redis

from psyche_core.errors import WireError
from psyche_core.interfaces.transport import MAX_MESSAGE_BYTES
from psyche_core.p2p.fetch_plan import Answer
from psyche_core.p2p.message_log import PREFIX_BYTES, LogEntry, MessageLog
from psyche_core.wire.codec import decode, encode
from psyche_p2p_redis.frames import MAX_FRAME_BYTES, LinkKeys, Names
from psyche_p2p_redis.server import RedisLost, Server
from psyche_p2p_redis.uploads import Traffic

FRAMES_AT_ONCE = 64
MAX_QUEUED = 1024
"""Frames that wait in one list; the writer waits for the reader then."""

QUEUE_SECONDS = 60
"""A list to which nothing was added for so long is dropped by Redis."""

PING_SECONDS = 5.0
FULL_SECONDS = 0.1
GOODBYE_SECONDS = 1.0
MAX_WANTED = 64
"""Blobs that a member may ask for at the same time."""


class Owner(Protocol):
    """What a link needs of its transport."""

    log: MessageLog
    names: Names
    server: Server
    traffic: Traffic
    silence_seconds: float

    def take(self, peer: bytes, message: bytes, *, tag: int, relayed: bool) -> None:
        """A message has come. Raises WireError if the peer must be disconnected."""

    async def serve(self, blob_hash: bytes, limit: int) -> int | Answer:
        """Put a blob into Redis and return its size; or why there is none."""


class _Wanted:
    """A blob that we have asked the member for."""

    def __init__(self) -> None:
        self.answer: int | Answer = Answer.LOST
        self.done = anyio.Event()

    def end(self, answer: int | Answer) -> None:
        if not self.done.is_set():
            self.answer = answer
            self.done.set()


class Link:
    """Run it with `run`, give it what comes with `feed`, end it with `close`. proven: the peer has shown that it is there."""

    def __init__(self, owner: Owner, keys: LinkKeys) -> None:
        self.peer, self.theirs = keys.peer, keys.theirs
        self.inbox = owner.names.queue(keys.theirs, keys.ours)
        self.proven = False
        self.ended = anyio.Event()
        self._outbox = owner.names.queue(keys.ours, keys.theirs)
        self._owner, self._keys = owner, keys
        self._sent = self._came = 0  # frames
        self._heard = time.monotonic()
        self._known: set[bytes] = set()
        self._generation = owner.log.generation
        self._requests = count()
        self._asked: deque[bytes] = deque()  # bodies to send
        self._wanted: dict[int, _Wanted] = {}
        self._serving = 0
        self._news = anyio.Event()
        self._scope = anyio.CancelScope()
        self._tasks: TaskGroup | None = None
        self._told = False  # that it has ended

    @property
    def closed(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._scope.cancel_called

    def wake(self) -> None:
        """There may be something to send."""
        self._news.set()

    def close(self) -> None:
        """End the link; does not wait."""
        self._scope.cancel()

    async def run(self) -> None:
        """Send until the link ends, whoever ends it."""
        try:
            with self._scope:
                async with anyio.create_task_group() as self._tasks:
                    await self._write()
                    self.close()
        except* RedisLost:
            pass  # all links end with it, and begin anew
        finally:
            for wanted in self._wanted.values():
                wanted.end(Answer.LOST)
            self._scope.cancel()
            with anyio.move_on_after(GOODBYE_SECONDS, shield=True):
                await self._say_goodbye()
            self.ended.set()

    async def want(self, blob_hash: bytes, limit: int) -> int | Answer:
        """Ask the member to put a blob into Redis. limit: its greatest size. Returns its size, which the member may lie about."""
        number, wanted = next(self._requests), _Wanted()
        if self.closed:
            return Answer.LOST
        self._wanted[number] = wanted
        try:
            self._ask(encode([2, number, blob_hash, limit]))
            await wanted.done.wait()
        finally:
            self._wanted.pop(number, None)
        if isinstance(wanted.answer, int) and wanted.answer > limit:
            return Answer.TOO_LARGE
        return wanted.answer

    def feed(self, frame: bytes) -> None:
        """The next frame of the peer. Raises WireError if the link must end."""
        body = self._keys.open(self._came, frame)
        self._came += 1
        self._owner.traffic.received += len(frame)
        self._heard, self.proven = time.monotonic(), True
        match decode(body, max_bytes=MAX_FRAME_BYTES, max_depth=1):
            case [0]:
                pass
            case [1, int() as tag, bool() as relayed, bytes() as message] if len(message) <= MAX_MESSAGE_BYTES:
                self._known.add(hashlib.sha256(message).digest()[:PREFIX_BYTES])
                self._owner.take(self.peer, message, tag=tag, relayed=relayed)
            case [2, int() as number, bytes() as blob_hash, int() as limit] if len(blob_hash) == 32:
                self._serving += 1
                if self._serving > MAX_WANTED:
                    error = f"more than {MAX_WANTED} blobs were asked for at the same time"
                    raise WireError(error)
                if self._tasks is not None and not self.closed:
                    self._tasks.start_soon(self._serve, number, blob_hash, limit)
            case [3, int() as number, int() as size] if size >= 0:
                self._answered(number, size)
            case [4, int() as number, int() as code] if code in (0, 1):
                self._answered(number, Answer.TOO_LARGE if code else Answer.ABSENT)
            case [5]:
                self._told = True
                self.close()
            case _:
                error = "not a frame of this transport"
                raise WireError(error)
        self.wake()

    def _ask(self, body: bytes) -> None:
        self._asked.append(body)
        self.wake()

    def _answered(self, number: int, answer: int | Answer) -> None:
        if (wanted := self._wanted.get(number)) is not None:  # otherwise whoever wanted it does not any more
            wanted.end(answer)

    async def _serve(self, number: int, blob_hash: bytes, limit: int) -> None:
        try:
            answer = await self._owner.serve(blob_hash, limit)
            self._ask(encode([4, number, int(answer is Answer.TOO_LARGE)] if isinstance(answer, Answer) else [3, number, answer]))
        finally:
            self._serving -= 1

    async def _write(self) -> None:
        await self._push([encode([0])])
        while True:
            self._news = anyio.Event()
            if bodies := self._next() if self.proven else []:
                await self._push(bodies)
                continue

            silence = self._owner.silence_seconds
            with anyio.move_on_after(min(PING_SECONDS, silence / 3)) as waited:
                await self._news.wait()
            if time.monotonic() - self._heard > silence:
                return
            if waited.cancelled_caught and self.proven:
                await self._push([encode([0])])

    def _next(self) -> list[bytes]:
        """Bodies to send now: what was asked first, then messages that the peer lacks."""
        bodies = [self._asked.popleft() for _ in range(min(len(self._asked), FRAMES_AT_ONCE))]
        for entry in self._lacking()[: FRAMES_AT_ONCE - len(bodies)]:
            self._known.add(entry.id[:PREFIX_BYTES])
            bodies.append(encode([1, entry.tag, entry.via is not None, entry.message]))
        return bodies

    def _lacking(self) -> list[LogEntry]:
        log = self._owner.log
        if log.generation != self._generation:  # messages have expired
            self._generation = log.generation
            self._known = {prefix for prefix in self._known if log.find(prefix) is not None}
        return log.lacking(self._known)

    async def _push(self, bodies: list[bytes]) -> None:
        frames = [self._keys.seal(self._sent + index, body) for index, body in enumerate(bodies)]

        async def work(redis: Redis) -> int:
            pipe = redis.pipeline(transaction=True)
            pipe.rpush(self._outbox, *frames)
            pipe.expire(self._outbox, QUEUE_SECONDS)
            return int((await pipe.execute())[0])

        self._sent += len(frames)
        self._owner.traffic.sent += sum(map(len, frames))  # before: the peer may have them before we are told
        queued = await self._owner.server.run(work)
        while queued > MAX_QUEUED:
            await anyio.sleep(FULL_SECONDS)
            queued = await self._owner.server.run(self._length)
            if time.monotonic() - self._heard > self._owner.silence_seconds:
                return

    async def _length(self, redis: Redis) -> int:
        return int(await redis.llen(self._outbox))

    async def _say_goodbye(self) -> None:
        """Tell a peer that has not ended it itself, and leave nothing of the other direction."""
        try:
            if self.proven and not self._told:
                await self._push([encode([5])])
            await self._owner.server.run(lambda redis: redis.unlink(self.inbox))
        except RedisLost:
            pass  # the peer notices that too
